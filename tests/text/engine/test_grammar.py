"""Answers follow their schema, regex or grammar, whatever runs beside them, ahead of them or is proposed."""

import json
import os
import random
import re
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages, engine_of
from text.tiny_chat import make_chat_model
from text.tokenizer.tiny_tokenizers import open_folder

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.prompt_lookup import PromptLookup
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.drafts.speculation import Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.grammar import Grammars
from genwright.text.engine.request import Request
from genwright.text.ops.cpu_ops import CpuOps

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"identifier": {"type": "integer", "maximum": 999}, "kind": {"enum": ["alpha", "alphabet", "omega"]}},
    "required": ["identifier", "kind"],
    "additionalProperties": False,
}
GBNF = 'root ::= "yes" | "no, because " [a-z]{3,9} "."'
LARK = 'start: "yes" | "no, because " WORD "."\nWORD: /[a-z]{3,9}/'
PARAMS = [
    SamplingParams(schema=SCHEMA, temperature=1.0, seed=1, max_new_tokens=300),
    SamplingParams(schema=SCHEMA, max_new_tokens=300, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(schema=SCHEMA, temperature=1.0, seed=7, max_new_tokens=20),
    SamplingParams(regex="[a-c]{4,12}(xyz){3}", temperature=1.5, seed=2, top_k=3),
    SamplingParams(grammar=GBNF, temperature=3.0, seed=3, logprobs=2),
    SamplingParams(grammar=LARK, temperature=3.0, seed=4, top_p=0.9),
    SamplingParams(temperature=1.0, seed=5, max_new_tokens=25),
    SamplingParams(max_new_tokens=30, logit_bias={70: 3.0}),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return LLM(make_chat_model(tmp_path_factory.mktemp("model")), device="cpu", dtype="float32")


def requests(llm: LLM) -> list[Request]:
    return [llm.requests(f"Question {'again ' * (i % 3)}{i}: ", params)[0] for i, params in enumerate(PARAMS)]


def follows(request: Request) -> bool:
    """Whether the answer is what its parameters ask for, by other libraries."""
    params, text = request.params, request.text
    if request.finish_reason == "length":
        return True
    if params.schema is not None:
        jsonschema.validate(json.loads(text), params.schema)
    elif params.regex is not None:
        assert re.fullmatch(params.regex, text)
    elif params.grammar is not None:
        assert re.fullmatch(r"yes|no, because [a-z]{3,9}\.", text)
    return request.finish_reason == "stop"


@pytest.fixture(scope="module")
def alone(llm) -> list[Request]:
    engine, made = engine_of(llm, 64, max_batch=1, deterministic=True), requests(llm)
    for request in made:
        engine.submit(request)
        while engine.busy():
            engine.step()
    return made


def test_answers_follow_and_say_how_they_ended(alone):
    assert all(map(follows, alone))
    assert [r.finish_reason for r in alone] == ["stop", "stop", "length", "stop", "stop", "stop", "length", "length"]
    assert alone[4].logprobs and len(alone[4].logprobs) == len(alone[4].output)


def engines(llm: LLM, rng: random.Random) -> Engine:
    max_batch, max_tokens = rng.choice((2, 4, 8)), rng.choice((20, 64))
    draft_model = DraftModel(
        ResidentExecutor(llm.model, CpuOps(False), 16, max_batch, max_tokens), llm.model, max_tokens, llm.max_context
    )
    draft_model.cost = 0.1
    drafts = [None, PromptLookup(torch.device("cpu")), draft_model]
    draft = rng.choice(drafts)
    speculation = None if draft is None else Speculation(draft, 4, StepCost(0.02))
    settings = {"speculation": speculation, "steps_ahead": rng.choice((0, 1))}
    return engine_of(llm, rng.choice((4, 64)), max_batch, max_tokens, deterministic=True, **settings)


def test_neighbours_drafts_and_steps_ahead_change_no_token(llm, alone, full_size):
    for seed in range(200 if full_size else 16):
        rng = random.Random(seed)
        engine, made = engines(llm, rng), requests(llm)
        for request in rng.sample(made, len(made)):
            engine.submit(request)
        while engine.busy():
            engine.step()
            check_pages(engine)
        for mine, theirs in zip(made, alone, strict=True):
            assert (mine.output, mine.text, mine.finish_reason) == (theirs.output, theirs.text, theirs.finish_reason)
            assert [p.id for p in mine.logprobs] == [p.id for p in theirs.logprobs]
        assert available(engine.pool) == engine.pool.cache.pages
        assert not engine.sampler._states


def test_requests_without_a_grammar_run_ahead_beside_one(llm):
    """A step is launched before the tokens of the one before it are read."""
    engine = engine_of(llm, 64, deterministic=True, steps_ahead=1)
    free = llm.requests("Free: ", SamplingParams(max_new_tokens=40))[0]
    bound = llm.requests("Bound: ", SamplingParams(regex="[a-z]{60}", max_new_tokens=40))[0]
    engine.submit(free)
    engine.submit(bound)
    ahead = []
    run = engine.executor.run

    def spy(chunks, known=None):
        ahead.append(free.unread)
        return run(chunks, known)

    engine.executor.run = spy
    while engine.busy():
        engine.step()
    assert sum(ahead) > 30


def test_samples_and_stream(llm):
    params = SamplingParams(schema=SCHEMA, temperature=1.0, seed=11, n=4, max_new_tokens=300)
    result = llm.generate(["One: "], params)[0]
    for each in (result, *result.samples):
        jsonschema.validate(json.loads(each.text), SCHEMA)
    assert len({each.text for each in (result, *result.samples)}) > 1
    assert "".join(piece.text for piece in llm.stream("One: ", replace(params, n=1))) == result.text


def test_a_logits_processor_and_a_grammar(llm):
    def prefer_c(ids, logits):
        logits[llm.tokenizer.encode("c", special=False)[0]] += 100
        return logits

    assert llm.generate(["x"], SamplingParams(regex="[abc]{5}d", logits_processor=prefer_c))[0].text == "cccccd"


def test_a_bias_that_forbids_what_the_grammar_requires_is_told(llm):
    token = llm.tokenizer.encode("q", special=False)[0]
    with pytest.raises(UserError, match="logit_bias forbids"):
        llm.generate(["x"], SamplingParams(regex="q+", logit_bias={token: float("-inf")}))
    assert llm.generate(["x"], SamplingParams(regex="q{3}"))[0].text == "qqq"


def test_an_answer_that_cannot_be_completed_is_an_error_and_not_an_end(llm):
    endless = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
    with pytest.raises(UserError, match=r"The grammar cannot continue: .*; .*it allows nothing here"):
        llm.generate(["x"], SamplingParams(schema=endless))


def test_brackets_of_markers_are_plain_text_in_a_users_grammar(llm):
    assert llm.generate(["x"], SamplingParams(regex="⟦until a⟧"))[0].text == "⟦until a⟧"


def test_whitespace_is_bounded(llm):
    spaces = {token: 50.0 for text in (" ", "\n", "\t") for token in llm.tokenizer.encode(text, special=False)}
    result = llm.generate(["x"], SamplingParams(schema=SCHEMA, logit_bias=spaces, max_new_tokens=400))[0]
    assert result.finish_reason == "stop" and json.loads(result.text)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"schema": "{"}, "The schema is not valid JSON"),
        ({"schema": "[1]"}, "must be a JSON object"),
        ({"schema": 3}, "must be a JSON Schema as a dict"),
        ({"regex": "("}, "The regex is not valid"),
        ({"regex": r"[^\s\S]"}, "The regex allows no answer"),
        ({"schema": {"$ref": "#"}}, "The schema allows no answer"),
        ({"schema": '{"a": ' * 400 + "1" + "}" * 400}, "The schema cannot be followed: recursion limit"),
        ({"schema": {"const": object()}}, "The schema is not plain data"),
        ({"regex": ""}, "regex must be a text that is not empty"),
        ({"grammar": "start: nowhere"}, "The grammar is not valid"),
        ({"grammar": "root ::= nowhere"}, "The grammar is not valid"),
        ({"regex": "a", "grammar": "start: /a/"}, "only one of schema, regex and grammar"),
    ],
)
def test_what_is_wrong_is_one_sentence(llm, params, words):
    with pytest.raises(UserError, match=words) as told:
        llm.generate(["x"], SamplingParams(**params))
    assert "\n" not in str(told.value)


def test_a_model_without_a_tokenizer_says_so():
    with LLM("random:stories15M", device="cpu") as llm, pytest.raises(UserError, match="has no tokenizer"):
        llm.generate([[1, 2]], SamplingParams(regex="a"))


def test_without_llguidance_one_sentence_says_what_to_install(llm, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(UserError, match=r"genwright\[serve\]"):
        llm.generate(["x"], SamplingParams(regex="another"))


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback", "sentencepiece"])
def test_every_kind_of_tokenizer(folders, name):
    """Random tokens that the masks allow spell a text that the regular expression matches."""
    pattern, rng = r"[a-z]{1,5}(, [0-9]+){2}; (é|日本|😀)x", np.random.default_rng(0)
    tokenizer = open_folder(folders[name])
    start = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids).new(SamplingParams(regex=pattern))
    for _ in range(20):
        grammar, stream, text = start.copy(), tokenizer.stream(), ""
        complete = False
        while not complete:
            allowed = np.flatnonzero(np.unpackbits(grammar.mask().view(np.uint8), bitorder="little"))
            token = int(rng.choice(allowed))
            complete = grammar.advance(token)
            text += stream.push(token)
        assert re.fullmatch(pattern, text + stream.end())


@pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="500 answers of the default model")
def test_the_default_models_answers_validate(smollm2):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "email": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4},
            "address": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"city": {"type": "string"}}}]},
        },
        "required": ["name", "age", "tags"],
    }
    params = SamplingParams(schema=schema, temperature=1.0, seed=5, n=500, max_new_tokens=200)
    with LLM(smollm2) as llm:
        result = llm.generate([llm.encode_chat([{"role": "user", "content": "Invent a person, as JSON."}])], params)[0]
    ended = [each.text for each in (result, *result.samples) if each.finish_reason == "stop"]
    cut = sum(each.finish_reason == "length" for each in (result, *result.samples))
    for text in ended:
        jsonschema.validate(json.loads(text), schema)
    assert len(ended) + cut == 500 and cut < 250
