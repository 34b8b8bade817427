"""Engines with chosen limits around a loaded model, and the invariants that hold after every step."""

from collections.abc import Callable

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE
from genwright.text.cache.pages import NO_PAGE
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentRunner
from genwright.text.engine.request import Request
from genwright.text.ops.cpu_ops import CpuOps


def engine_of(llm: LLM, pages: int, max_batch: int = 16, max_tokens: int = 256, deterministic: bool = False) -> Engine:
    ops = CpuOps(deterministic)
    runner = ResidentRunner(llm.model, ops, pages, max_batch, max_tokens)
    return Engine(runner, max_batch, max_tokens, min(llm.max_context, pages * PAGE))


def request(prompt: list[int], params: SamplingParams) -> Request:
    return Request(prompt, params, params.seed or 0)


def drain(engine: Engine, requests: list[Request], each_step: Callable[[Engine], None] = lambda engine: None):
    """Run requests to their ends; their tokens in order."""
    for r in requests:
        engine.submit(r)
    while engine.busy():
        engine.step()
        each_step(engine)
    return [r.output for r in requests]


def check_pages(engine: Engine) -> None:
    """Every page is free, in the tree, or one sequence's own, and exactly one of these."""
    pool = engine.pool
    nodes = list(pool.prefixes())
    held = [*(node.pages for node in nodes), *(pages for r in engine.scheduler.running for pages in r.pages.own)]
    everything = [*pool.free, *(page for pages in held for page in pages if page != NO_PAGE)]
    assert sorted(everything) == list(range(pool.cache.spec.null_pages, pool.cache.pages))
    for node in nodes:
        holders = sum(node in r.pages.shared for r in engine.scheduler.running)
        assert node.users == holders
        assert (node in pool.idle) == (not node.users and not node.children)
        assert node.parent is pool.root or node.parent.users >= node.users
    for node, group in pool.passed:
        assert node.readers[group] == 0 and node.pages[group] != NO_PAGE
    for r in engine.scheduler.running:
        assert r.pages.capacity() >= r.pages.length
        for group, passed in enumerate(r.pages.passed):
            assert all(node.pages[group] != NO_PAGE and node.readers[group] for node in r.pages.shared[passed:])
