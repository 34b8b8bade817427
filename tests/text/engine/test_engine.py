"""Every request gets the tokens it would get alone, however requests are batched, chunked and pre-empted."""

import math
import random

import numpy as np
import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages, drain, engine_of, request
from text.families import FAMILIES, greedy, make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.kernels import PAGE

GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)


def prompts(count: int, low: int, high: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 199) for _ in range(rng.randint(low, high))] for _ in range(count)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> LLM:
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    return LLM(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_of_running_gives_transformers_tokens(family, tmp_path):
    theirs = make(family, tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    texts = prompts(6, 1, 150)
    expected = [greedy(theirs, text, 12) for text in texts]
    assert [llm.generate([text], GREEDY)[0].ids for text in texts] == expected, "single"
    assert [result.ids for result in llm.generate(texts, GREEDY)] == expected, "batched, from the prefix cache"
    chunked = engine_of(llm, pages=256, max_tokens=17)
    requests = [request(text, GREEDY) for text in texts]
    assert drain(chunked, requests) == expected, "chunked and batched"
    assert all(r.cached_tokens == 0 for r in requests)
    again = [request(text, GREEDY) for text in texts]
    assert drain(chunked, again) == expected, "chunked, from the prefix cache"
    assert [r.cached_tokens for r in again] == [len(text) - 1 for text in texts]


def test_a_thousand_requests_through_a_tenth_of_their_pages(tiny, full_size):
    texts = prompts(1000 if full_size else 60, 1, 400, seed=1)
    rng = random.Random(2)
    params = [SamplingParams(max_new_tokens=rng.randint(1, 12), temperature=rng.choice([0, 1]), seed=7) for _ in texts]
    needed = sum(-(-(len(text) + p.max_new_tokens) // PAGE) for text, p in zip(texts, params, strict=True))
    engine = engine_of(tiny, pages=max(needed // 10, 7), max_batch=64, max_tokens=512, deterministic=True)
    requests = [request(text, p) for text, p in zip(texts, params, strict=True)]
    together = drain(engine, requests, each_step=check_pages)
    assert all(r.finish_reason == "length" for r in requests)
    assert available(engine.pool) == engine.pool.cache.pages
    alone = engine_of(tiny, pages=7, max_batch=1, max_tokens=512, deterministic=True)
    for text, p, tokens in zip(texts, params, together, strict=True):
        assert drain(alone, [request(text, p)]) == [tokens]


def test_cancelling_at_random_returns_every_page(tiny, full_size):
    texts = prompts(1000 if full_size else 200, 1, 400, seed=3)
    engine = engine_of(tiny, pages=sum(len(t) for t in texts) // PAGE // 10, max_batch=32)
    requests = [request(text, SamplingParams(max_new_tokens=8, ignore_eos=True)) for text in texts]
    rng = random.Random(4)

    def cancel_some(engine):
        check_pages(engine)
        for r in rng.sample(requests, 3):
            if rng.random() < 0.3:
                engine.cancel([r])

    outputs = drain(engine, requests, each_step=cancel_some)
    assert {r.finish_reason for r in requests} == {"length", "cancelled"}
    assert available(engine.pool) == engine.pool.cache.pages
    whole = [i for i, r in enumerate(requests) if r.finish_reason == "length"]
    sample = rng.sample(whole, min(len(whole), 20))
    assert [outputs[i] for i in sample] == [tiny.generate([texts[i]], requests[i].params)[0].ids for i in sample]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2-window", "gemma3"])
def test_preemption_happens_and_costs_nothing_but_time(family, tmp_path):
    make(family, tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    texts = prompts(6, 60, 64, seed=5)
    params = SamplingParams(max_new_tokens=80, ignore_eos=True)
    spec = llm.engine.pool.cache.spec
    engine = engine_of(llm, 2 * spec.pages_of(144, 64) + spec.null_pages, max_batch=8, max_tokens=64)
    requests = [request(text, params) for text in texts]
    preempted = []
    preempt = engine.scheduler.preempt
    engine.scheduler.preempt = lambda r: (preempted.append(r), preempt(r))
    assert drain(engine, requests, each_step=check_pages) == [r.ids for r in llm.generate(texts, params)]
    assert preempted


def test_a_shared_prefix_is_computed_once(tiny):
    prefix = prompts(1, 300, 300, seed=6)[0]
    engine = engine_of(tiny, pages=64, max_tokens=128)
    requests = [request([*prefix, *tail], GREEDY) for tail in prompts(5, 3, 9, seed=7)]
    computed = 0
    run = engine.executor.run

    def counting(chunks, known=None):
        nonlocal computed
        computed += sum(len(chunk.tokens) for chunk in chunks)
        return run(chunks, known)

    engine.executor.run = counting
    drain(engine, requests)
    tails = sum(r.prompt_tokens - len(prefix) for r in requests)
    answers = len(requests) * (GREEDY.max_new_tokens - 1)
    assert computed <= len(prefix) + tails + answers + 4 * (len(prefix) % PAGE)


def test_nan_ends_its_own_request_alone(tiny):
    engine = engine_of(tiny, pages=4, max_batch=4)
    good, bad = prompts(2, 80, 90, seed=8)
    expected = tiny.generate([good], GREEDY)[0].ids
    run = engine.executor.run
    victims = [request(bad, GREEDY), request(good, GREEDY)]

    def poisoned(chunks, known=None):
        logits = run(chunks, known).clone()
        for rows in engine.executor.cache.rows.values():
            for page in victims[0].pages.tables()[0] if victims[0].pages else []:
                rows[:, page] = float("nan")
        logits[0] = float("nan")
        return logits

    engine.executor.run = poisoned
    for r in victims:
        engine.submit(r)
    while victims[0].finish_reason is None:
        engine.step()
    engine.executor.run = run
    while engine.busy():
        engine.step()
    assert (victims[0].finish_reason, victims[1].finish_reason) == ("error", "length")
    assert victims[1].output == expected
    assert drain(engine, [request(good, GREEDY)]) == [expected], "pages of the poisoned request are clean"


def test_out_of_memory_preempts_then_fails_one_request(tiny):
    engine = engine_of(tiny, pages=32, max_batch=4)
    texts = prompts(3, 20, 30, seed=9)
    run, refusals = engine.executor.run, [2]

    def short_of_memory(chunks, known=None):
        if len(chunks) > 1 and refusals[0]:
            refusals[0] -= 1
            raise torch.OutOfMemoryError("no")
        return run(chunks, known)

    engine.executor.run = short_of_memory
    assert drain(engine, [request(t, GREEDY) for t in texts]) == [r.ids for r in tiny.generate(texts, GREEDY)]

    def no_memory(chunks, known=None):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    engine.executor.run = no_memory
    hopeless = request(texts[0], GREEDY)
    drain(engine, [hopeless])
    assert hopeless.finish_reason == "error"


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "at least one token"),
        ([1] * 512, {}, "the context holds 512"),
        ([1, 199], {}, "between 0 and 198"),
        ([1, -1], {}, "between 0 and 198"),
        ([1], {"logit_bias": {500: 1.0}}, "between 0 and 198"),
        ("text", {}, "no tokenizer"),
        (b"text", {}, "text or a list of token ids"),
        ([1, True], {}, "True is not a token id"),
        ([1], {"logit_bias": dict.fromkeys(range(199), -math.inf)}, "forbid every token"),
        ([1], {"stop_ids": range(199), "min_new_tokens": 1}, "forbid every token"),
    ],
)
def test_requests_that_cannot_be_served_are_one_sentence(tiny, prompt, params, words):
    with pytest.raises(UserError, match=words):
        tiny.generate([prompt], SamplingParams(**params))
    assert not tiny.loop.call(tiny.engine.busy)


def test_ids_of_numpy_and_torch_are_ids(tiny):
    prompt = [5, 6, 7]
    expected = tiny.generate([prompt], GREEDY)[0].ids
    for given in (
        np.array(prompt),
        np.array(prompt, np.uint8),
        torch.tensor(prompt),
        list(np.array(prompt)),
        range(5, 8),
    ):
        assert [result.ids for result in tiny.generate(given, GREEDY)] == [expected]
        assert [result.ids for result in tiny.generate([given, prompt], GREEDY)] == [expected] * 2
        assert [token for piece in tiny.stream(given, GREEDY) for token in piece.ids] == expected
        assert torch.equal(tiny.logits(given), tiny.logits(prompt))
    assert [result.ids for result in tiny.generate(torch.tensor([prompt, prompt]), GREEDY)] == [expected] * 2


def test_the_context_ends_an_answer(tiny):
    result = tiny.generate([[5] * 500], SamplingParams(max_new_tokens=1000, ignore_eos=True))[0]
    assert (len(result.ids), result.finish_reason) == (12, "length")


def test_callbacks_see_every_token_and_can_cancel(tiny):
    seen: dict[int, list[int]] = {0: [], 1: []}

    def callback(piece):
        seen[piece.index] += piece.ids
        return not (piece.index == 1 and len(seen[1]) == 3)

    first, second = tiny.generate([[1, 2, 3], [4, 5]], GREEDY, callback)
    assert (first.ids, second.ids) == (seen[0], seen[1])
    assert (first.finish_reason, second.finish_reason, len(second.ids)) == ("length", "cancelled", 3)


def test_an_exception_in_a_callback_leaves_the_engine_clean(tiny):
    with pytest.raises(ZeroDivisionError):
        tiny.generate([[1, 2, 3]], GREEDY, lambda piece: 1 / 0)
    assert not tiny.loop.call(tiny.engine.busy)
    stream = tiny.stream([1, 2, 3], GREEDY)
    next(stream)
    stream.close()
    assert not tiny.loop.call(tiny.engine.busy)


def test_memory_that_is_too_small_says_what_would_fit(tmp_path):
    make("llama", tmp_path)
    with pytest.raises(UserError, match="a smaller model or a narrower dtype would fit"):
        LLM(tmp_path, device="cpu", dtype="float32", cpu_mem=1e-6)
    with pytest.raises(UserError, match=r"max_context=\d+ would fit"):
        LLM(tmp_path, device="cpu", dtype="float32", cpu_mem=0.00085, max_context=512)


def test_generating_between_two_pieces_of_a_stream_disturbs_neither(tiny):
    alone = [token for piece in tiny.stream([1, 2, 3], GREEDY) for token in piece.ids]
    stream = tiny.stream([1, 2, 3], GREEDY)
    first = next(stream)
    between = tiny.generate([[4, 5, 6]], GREEDY)[0].ids
    rest = [token for piece in stream for token in piece.ids]
    assert first.ids + rest == alone
    assert between == tiny.generate([[4, 5, 6]], GREEDY)[0].ids


def test_a_window_answers_beyond_the_pages_of_the_pool(tmp_path):
    """Six pages, one of them the null page, hold every context of a model with short windows."""
    theirs = make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    engine = engine_of(llm, pages=6, max_tokens=64)
    engine.max_context = llm.max_context
    text = prompts(1, 460, 460, seed=13)[0]
    answer = request(text, SamplingParams(max_new_tokens=40, ignore_eos=True))
    assert drain(engine, [answer], each_step=check_pages) == [greedy(theirs, text, 40)]
