"""Requests of any types and values give results or a `UserError`, and leave the engine as it was."""

import math
import random
from array import array
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages
from text.families import make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer

VOCAB, CONTEXT = 199, 512
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] + '\n' }}{% endfor %}"
NESTED: list[Any] = []
NESTED.append(NESTED)
# No whole number here lies between 8 and 2^30: answers stay short.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 7, 1 << 31, -(1 << 70), 10**30, 10**5000, 0.5, -0.0, 1e-38, 1e-300, 1e38, 1e308),
    *(math.nan, math.inf, -math.inf, 1j, "", "7", "hot", "a", "\ud800", "\x00", b"", b"7", bytearray(b"12"), object()),
    *([], (), {}, set(), [None], [1, "x"], [[1]], ["a", ""], {"a": 1}, {1: 2}, {1, 2}, range(3), range(0), NESTED),
    *(np.float32(0.7), np.float64("nan"), np.int64(3), np.uint64((1 << 64) - 1), np.bool_(True), np.str_("b")),
    *(np.longdouble(0.5), np.datetime64("2024-01-01"), np.array(2), np.array([1, 2]), np.array([0.5]), np.array([])),
    *(
        np.array(["a"]),
        np.array([None]),
        np.zeros((2, 2), int),
        np.array([True]),
        array("l", [1, 2]),
        memoryview(b"12"),
    ),
    *(torch.tensor(3), torch.tensor(0.5), torch.tensor(True), torch.tensor([4, 5]), torch.zeros(2, 2), torch.empty(0)),
    *(torch.tensor([[5, 6]]), torch.tensor(1, device="meta"), torch.zeros(3).to_sparse(), torch.tensor([1j])),
    *(Decimal("0.5"), Fraction(1, 2), int, np.int64, SamplingParams, len, ..., NotImplemented, (x for x in [1])),
)
VALID: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 0.7, 1e-38, 1e-300, 100, np.float32(0.7), torch.tensor(0.9)),
    "top_k": (0, 1, 5, 1 << 24, np.int64(3), torch.tensor(3)),
    "top_p": (0, 1e-300, 0.5, 1, np.float16(0.5)),
    "min_p": (0.0, 0.1, 1),
    "repetition_penalty": (0.01, 1.2, 100),
    "presence_penalty": (-100, 0.5, 100),
    "frequency_penalty": (-100, 0.5, 100),
    "logit_bias": (
        {},
        {5: 1e30},
        {5: -math.inf},
        {np.int64(5): np.float32(2)},
        dict.fromkeys(range(1, VOCAB), -math.inf),
    ),
    "seed": (None, 0, -5, (1 << 64) - 1, np.int64(7), torch.tensor(7)),
    "n": (1, 2, 3, np.int64(2)),
    "min_new_tokens": (0, 3, 1 << 30, np.int32(2)),
    "stop": ("a", ["b", "cd"], ("\ud800",), "x" * 10_000, np.array(["a", "b"])),
    "stop_ids": ((5,), [6, 7], np.array([5, 6]), torch.tensor([5]), range(VOCAB)),
    "ignore_eos": (True, False, np.bool_(True)),
    "logprobs": (None, 0, 2, 1000, np.int8(3)),
    "prompt_logprobs": (True, False),
}
MESSAGES: tuple[Any, ...] = (
    *([{"role": "user", "content": "hi"}], [{"role": "user"}], [{"content": "hi"}], [{}], ["hi"], "hi", [[]], {}),
    *({"role": "user", "content": "hi"}, [{"role": "user", "content": "\ud800"}], [{"role": None, "content": None}]),
    *([{"role": "user", "content": "x" * 600}], [{"role": "user", "content": NESTED}], [{"role": object()}]),
    *([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], [{"role": "user", "content": 5}, None]),
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    """A tiny model with a tokenizer of ASCII characters."""
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    llm = LLM(folder, device="cpu", dtype="float32")
    vocabulary = {chr(code): code for code in range(32, 127)} | {"</s>": 2}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    llm.tokenizer = Tokenizer(backend, {"chat_template": TEMPLATE, "eos_token": "</s>"})
    return llm


def draw_prompt(rng: random.Random) -> Any:
    ids = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    kinds = (list, tuple, np.array, torch.tensor, lambda x: np.array(x, np.uint8), lambda x: [np.int64(i) for i in x])
    strange = (
        -1,
        VOCAB,
        1 << 70,
        10**5000,
        True,
        2.0,
        math.nan,
        None,
        "a",
        np.int64(-1),
        np.float32(1),
        torch.tensor(5),
    )
    spoiled = [*ids[: len(ids) // 2], rng.choice(strange), *ids[len(ids) // 2 :]]
    long = [5] * rng.choice((CONTEXT - 1, CONTEXT, 5000))
    texts = ("hello", "\ud800", "漢字", "a\x00b", "a" * 600, "")
    choices: tuple[Any, ...] = (rng.choice(kinds)(ids), spoiled, long, rng.choice(texts), rng.choice(HOSTILE))
    return rng.choices(choices, (12, 2, 0.2, 3, 3))[0]


def draw_params(rng: random.Random) -> dict[str, Any]:
    names = [name for name in VALID if rng.random() < 0.15]
    hostile = rng.random() < 0.2
    given = {name: rng.choice(HOSTILE if hostile and rng.random() < 0.5 else VALID[name]) for name in names}
    if rng.random() < 0.05:
        given["logit_bias"] = {rng.choice((True, 3, -1, 10**30, None, "3", 1.0)): rng.choice((*HOSTILE[:20], 1.0))}
    return given | {"max_new_tokens": rng.choice(HOSTILE) if rng.random() < 0.05 else rng.randint(1, 6)}


def ask(llm: LLM, rng: random.Random) -> list[Any]:
    """One random request through one of the four ways in; its results."""
    given = draw_params(rng)
    params: Any = SamplingParams(**given)
    if rng.random() < 0.05:
        params = rng.choice((*HOSTILE, [params], [params, params]))
    way = rng.randrange(6)
    if way == 0:
        return [torch.isfinite(llm.logits(draw_prompt(rng))).all()]
    if way == 1:
        return list(llm.stream(draw_prompt(rng), params))
    if way == 2:
        return [llm.chat(rng.choice((*MESSAGES, rng.choice(HOSTILE))), params)]
    if way == 3:
        return llm.generate([draw_prompt(rng) for _ in range(rng.randint(0, 3))], params)
    results = llm.generate(draw_prompt(rng), params)
    for result in results:
        for sample in (result, *result.samples):
            assert sample.finish_reason in ("stop", "length"), given
            assert all(type(token) is int and 0 <= token < VOCAB for token in sample.ids)
            if isinstance(params, SamplingParams) and sample.finish_reason == "length":
                assert len(sample.ids) <= params.max_new_tokens
            elif isinstance(params, SamplingParams):
                assert len(sample.ids) > params.min_new_tokens
    return results


def test_any_request_gives_results_or_one_sentence(llm, full_size):
    before = llm.generate([[5, 6, 7]], SamplingParams(max_new_tokens=8))[0].ids
    answered = refused = 0
    for number in range(5000 if full_size else 300):
        try:
            answered += bool(ask(llm, random.Random(number)))
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
            assert str(error)[-1] == "."
            assert len(str(error)) < 500
        except Exception as error:
            raise AssertionError(f"request {number} raised {type(error).__name__}: {error}") from error
    print(f"{answered} answered, {refused} refused")
    assert min(answered, refused) > 50
    check_pages(llm.engine)
    assert not llm.loop.call(llm.engine.busy)
    assert available(llm.engine.pool) == llm.engine.pool.cache.pages
    assert llm.generate([[5, 6, 7]], SamplingParams(max_new_tokens=8))[0].ids == before
