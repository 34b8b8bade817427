"""Running a step ahead changes no token: the decode loop against the engine's ordinary step, without a GPU."""

import random

import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages, drain, engine_of, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE
from genwright.rng import extend, mix, uniform
from genwright.text.engine import ahead
from genwright.text.engine.ahead import DecodeLoop
from genwright.text.engine.cuda_graphs import GraphExecutor
from genwright.text.engine.engine import Engine
from genwright.text.engine.sampler import Filters, Purpose, distribution
from genwright.text.ops.cpu_ops import CpuOps


class Unpadded(GraphExecutor):
    """The reference's ops have no padding."""

    def bucket(self, sequences: int) -> int:
        return sequences


def quick_sample(logits, prefix, positions, temperature, top_k, top_p, min_p, out):
    """The kernel's work in torch: in Triton's interpreter it takes a fifth of a second."""
    vocab = logits.shape[1]
    warm = torch.where(temperature > 0, temperature, 1)
    columns = [column[:, None] for column in (warm, torch.where(top_k > 0, top_k, vocab), top_p, min_p)]
    probabilities, ids = distribution(logits, Filters(*columns, candidates=vocab))
    keys = extend(extend(prefix, positions), Purpose.SAMPLE)
    clock = -uniform(mix(mix(ids.to(torch.int32)) ^ keys[:, None])).log()
    drawn = ids.gather(1, (probabilities / clock).argmax(dim=-1, keepdim=True))[:, 0]
    return out.copy_(torch.where(temperature > 0, drawn, logits.argmax(dim=-1)))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(ahead, "sample", quick_sample)


def ahead_of(llm: LLM, pages: int, max_batch: int = 8) -> Engine:
    executor = Unpadded(llm.model, CpuOps(deterministic=True), pages, max_batch, 128, max_graph_tokens=0)
    return Engine(executor, max_batch, 128, min(llm.max_context, pages * PAGE), None, DecodeLoop(executor))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> LLM:
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    return LLM(folder, device="cpu", dtype="float32", max_context=320)


def some_requests(count: int, seed: int, new_tokens: int):
    rng = random.Random(seed)
    kinds = [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 9}, {"temperature": 1.0, "top_p": 0.7}]
    kinds += [{"temperature": 1.0, "repetition_penalty": 1.3}, {"logprobs": 1}]  # these the loop leaves to the engine
    for i in range(count):
        prompt = [rng.randrange(3, 199) for _ in range(rng.randint(1, 90))]
        params = SamplingParams(**rng.choice(kinds), max_new_tokens=rng.randint(1, new_tokens), seed=i)
        yield request(prompt, params)


def test_tokens_ends_and_pages_are_the_engines(tiny):
    ours, theirs = list(some_requests(14, 1, 70)), list(some_requests(14, 1, 70))
    for r in (*ours[::3], *theirs[::3]):
        r.ends = frozenset(range(3, 40))  # these end at a token, not at a length
    engine = ahead_of(tiny, pages=64)
    got = drain(engine, ours, each_step=check_pages)
    assert got == drain(engine_of(tiny, 64, max_batch=8, max_tokens=128, deterministic=True), theirs)
    assert [r.finish_reason for r in ours] == [r.finish_reason for r in theirs]
    assert {"stop", "length"} == {r.finish_reason for r in ours}
    assert available(engine.pool) == engine.pool.cache.pages and not engine.loop.flying


def test_few_pages_preempt_and_cancelled_requests_leave(tiny):
    ours = list(some_requests(10, 2, 60))
    engine, rng = ahead_of(tiny, pages=7, max_batch=4), random.Random(3)
    for r in ours:
        engine.submit(r)
    while engine.busy():
        engine.step()
        check_pages(engine)
        if rng.random() < 0.02:
            engine.cancel([rng.choice(ours)])
    alone = engine_of(tiny, 7, max_batch=1, max_tokens=128, deterministic=True)
    for r, same in zip(ours, some_requests(10, 2, 60), strict=True):
        whole = drain(alone, [same])[0]
        assert r.output == (whole if r.finish_reason != "cancelled" else whole[: len(r.output)])
    assert any(r.finish_reason == "cancelled" for r in ours)


def test_the_host_is_a_step_behind(tiny):
    engine = ahead_of(tiny, pages=8)
    [r] = [request([5, 6, 7], SamplingParams(max_new_tokens=9, ignore_eos=True))]
    engine.submit(r)
    engine.step()  # the prompt
    flying = []
    while engine.busy():
        engine.step()
        flying.append(engine.loop.flying)
    assert flying == [1, 1, 1, 1, 1, 1, 1, 0]  # the last step is known to be the last
    assert r.finish_reason == "length" and len(r.output) == 9


def test_one_that_waits_for_pages_does_not_hold_up_the_others(tiny):
    def both():
        yield request([5, 6, 7] * 30, SamplingParams(max_new_tokens=100, ignore_eos=True))  # 3 pages of 5
        yield request([8, 9] * 100, SamplingParams(max_new_tokens=9, ignore_eos=True))  # 4

    engine, (first, second) = ahead_of(tiny, pages=5), both()
    engine.submit(first)
    engine.submit(second)
    engine.step()  # the first's prompt
    flying = []
    while first.finish_reason is None:
        engine.step()
        flying.append(engine.loop.flying)
    assert flying == [1] * 98 + [0] and second.pages is None
    engine.step()
    assert second.pages is not None
    drain(engine, [])
    assert [first.output, second.output] == drain(engine_of(tiny, 5, max_tokens=128, deterministic=True), list(both()))


def test_another_may_use_the_executor_while_a_stream_pauses(tiny):
    ours, same = (request([5, 6, 7], SamplingParams(max_new_tokens=40, ignore_eos=True)) for _ in range(2))
    engine = ahead_of(tiny, pages=8)
    engine.submit(ours)
    for _ in range(9):
        engine.step()
    engine.settle()
    assert not engine.loop.flying
    engine.executor.buffers.lengths.fill_(3)  # as another's step would
    assert drain(engine, []) == [] and not engine.busy()
    assert ours.output == drain(engine_of(tiny, 8, deterministic=True), [same])[0]
