"""A function of the user changes a request's logits between two tokens: its neighbours go on and keep their tokens."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages, drain, request
from text.engine.test_launched_step import engine, params, prompts
from text.families import greedy, make, reference_logits

from genwright import LLM
from genwright.errors import UserError
from genwright.text.engine.request import Request


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    return folder, make("llama", folder)


@pytest.fixture(scope="module")
def tiny(theirs) -> LLM:
    return LLM(theirs[0], device="cpu", dtype="float32")


def processor(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Forbid a third of the tokens, which depends on the last one."""
    allowed = (torch.arange(len(logits)) + ids[-1]) % 3 > 0
    return torch.where(allowed, logits * 1.5, float("-inf"))


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_processor_changes_its_own_tokens_and_its_neighbours_go_on(theirs, tiny, steps_ahead):
    text, *others = prompts(4, seed=7)
    tokens = list(text)
    for _ in range(10):
        tokens.append(int(processor(tokens, reference_logits(theirs[1], tokens)[-1]).argmax()))
    run = engine(tiny, steps_ahead)
    own = request(text, params(10, logits_processor=processor, logprobs=2))
    neighbours = [request(other, params(40)) for other in others]
    for r in (own, *neighbours):
        run.submit(r)
    run.step()
    while own.finish_reason is None:
        before = [r.expected for r in neighbours]
        run.step()
        assert [r.expected for r in neighbours] == [count + 1 for count in before], "one token in every step"
        check_pages(run)
    assert own.output == tokens[len(text) :]
    assert own.logprobs == drain_logprobs(tiny, text, own)
    while run.busy():
        run.step()
    assert [r.output for r in neighbours] == [greedy(theirs[1], other, 40) for other in others]
    assert available(run.pool) == run.pool.cache.pages


def drain_logprobs(llm: LLM, text: list[int], own: Request) -> list:
    """The model's log-probabilities of the request's tokens, before its processor."""
    forced = request([*text, *own.output], params(1, logprobs=2, prompt_logprobs=True))
    drain(engine(llm, 0), [forced])
    return forced.prompt_logprobs[len(text) :]


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_sampled_processor_request_has_the_tokens_it_has_alone(tiny, steps_ahead):
    texts = prompts(6, seed=8)
    settings = [
        params(
            12, temperature=0.9, top_p=0.9, seed=i, presence_penalty=0.7, logits_processor=processor if i % 2 else None
        )
        for i in range(6)
    ]
    together = drain(engine(tiny, steps_ahead), [request(*pair) for pair in zip(texts, settings, strict=True)])
    alone = [drain(engine(tiny, 0), [request(*pair)])[0] for pair in zip(texts, settings, strict=True)]
    assert together == alone


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("result", ["exception", "shape", "none"])
def test_an_exception_in_a_processor_is_raised_and_leaves_the_engine_consistent(tiny, steps_ahead, result):
    def broken(ids, logits):
        if len(ids) < prompt_tokens + 4:
            return logits
        if result == "exception":
            raise ZeroDivisionError("mine")
        return logits[:-1] if result == "shape" else None

    text, *others = prompts(4, seed=9)
    prompt_tokens = len(text)
    alone = drain(engine(tiny, 0), [request(t, params()) for t in (text, *others)])
    run = engine(tiny, steps_ahead)
    own = request(text, params(logits_processor=broken))
    neighbours = [request(other, params()) for other in others]
    for r in (own, *neighbours):
        run.submit(r)
    reported, errors = [], []
    while run.busy():
        try:
            reported += run.step()
        except Exception as error:
            errors.append(error)
        check_pages(run)
    assert len(errors) == 1 and type(errors[0]) is (ZeroDivisionError if result == "exception" else UserError)
    assert own.finish_reason == "error" and own.output == alone[0][:4]
    assert reported.count(own) == 5, "its four tokens and its end"
    assert [r.output for r in neighbours] == alone[1:]
    assert available(run.pool) == run.pool.cache.pages
    assert drain(run, [request(text, params())]) == alone[:1]


def test_an_exception_in_a_processor_reaches_its_own_caller_only(tiny):
    texts = prompts(3, seed=11)
    alone = [result.ids for result in tiny.generate(texts, params(60))]
    steps, together = iter(range(1 << 30)), threading.Event()

    def broken(ids, logits):
        together.set()
        return logits if next(steps) < 5 else 1 / 0

    with ThreadPoolExecutor(1) as pool:
        neighbours = pool.submit(tiny.generate, texts, params(60), lambda piece: together.wait(10))
        with pytest.raises(ZeroDivisionError):
            tiny.generate(texts[:2], [params(40), params(40, logits_processor=broken)])
        assert [result.ids for result in neighbours.result()] == alone
    assert not tiny.loop.call(tiny.engine.busy)


def test_a_stream_of_logits_that_are_nan_ends_with_its_reason(tiny):
    nan = params(3, logits_processor=lambda ids, logits: logits * float("nan"))

    async def reasons() -> list[str | None]:
        return [piece.finish_reason async for piece in tiny.astream([5], nan)]

    assert [piece.finish_reason for piece in tiny.stream([5], nan)] == asyncio.run(reasons()) == ["error"]
