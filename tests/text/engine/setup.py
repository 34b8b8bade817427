"""Engines with chosen limits around a loaded model, and the invariants that hold after every step."""

from collections.abc import Callable

from text.cache.invariants import check_pool

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Request
from genwright.text.ops.cpu_ops import CpuOps


def engine_of(
    llm: LLM, pages: int, max_batch: int = 16, max_tokens: int = 256, deterministic: bool = False, **settings
) -> Engine:
    ops = CpuOps(deterministic)
    executor = ResidentExecutor(llm.model, ops, pages, max_batch, max_tokens)
    return Engine(executor, max_batch, max_tokens, min(llm.max_context, pages * PAGE), **settings)


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
    """The invariants of the engine's pages."""
    check_pool(engine.pool, [r.pages for r in engine.scheduler.running])


class Letters:
    """A detokenizer in which every token is a letter."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def end(self) -> str:
        return ""
