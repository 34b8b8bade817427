"""Runs requests on the engine: whole answers, or parts as they arrive, until the client goes away."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from genwright.serve.engine_client import Stream
from genwright.serve.frames import End, Part, ToolUse
from genwright.serve.http_errors import RequestError
from genwright.serve.service import Record, Service
from genwright.serve.sse import until_gone
from genwright.text.engine.request import STOPPED_EARLY, Logprob, SamplingParams

T = TypeVar("T")
Parts = AsyncGenerator[list[Part], None]
LARGE_BODY = 1 << 15  # bytes; tokenizing more would hold up the other streams for milliseconds


class ClientGone(Exception):
    """The client has closed the connection."""


@dataclass
class Choice:
    """One sequence of an answer."""

    text: str = ""
    tokens: int = 0
    logprobs: list[Logprob] = field(default_factory=list)
    end: End | None = None

    def add(self, part: Part) -> None:
        self.text += part.text
        self.tokens += part.tokens
        self.logprobs += part.logprobs
        self.end = part.end


@dataclass(frozen=True)
class Usage:
    """Tokens of a request's prompts and answers."""

    prompt: int
    cached: int
    completion: int

    def openai(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


def usage(choices: list[Choice], n: int) -> Usage:
    """A prompt counts once, however many answers it has; its cached tokens are those that the first answer found."""
    firsts = [choice.end for choice in choices[::n] if choice.end is not None]
    prompt, cached = sum(end.prompt_tokens for end in firsts), sum(end.cached_tokens for end in firsts)
    return Usage(prompt, cached, sum(choice.tokens for choice in choices))


async def prepare(request: Request, work: Callable[..., T], *arguments: Any) -> T:
    """The result of work on a request's body, such as tokenizing it; on a thread if the body is large."""
    if request.scope["record"].body_bytes < LARGE_BODY:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


async def complete(
    service: Service, request: Request, prompts: list[list[int]], params: SamplingParams, use: ToolUse | None = None
) -> list[Choice]:
    """The whole answers to prompts, `params.n` for each, with calls of tools."""
    stream = _submit(service, request, prompts, params, use, whole=True)
    choices = [Choice() for _ in range(stream.sequences)]

    async def gather() -> None:
        async for parts in _measured(service, request, stream, params.n, whole=True):
            for part in parts:
                choices[part.choice].add(part)

    await while_connected(request, gather())
    return choices


async def open_stream(
    service: Service, request: Request, prompts: list[list[int]], params: SamplingParams, use: ToolUse | None = None
) -> Parts:
    """The parts of answers; what goes wrong before the first part is raised here, while a status can still be sent."""
    stream = _submit(service, request, prompts, params, use, whole=False)
    parts = _measured(service, request, stream, params.n, whole=False)
    first = await while_connected(request, anext(parts))

    async def all_parts() -> Parts:
        try:
            yield first
            async for later in parts:
                yield later
        finally:
            await parts.aclose()

    return all_parts()


async def compute(service: Service, request: Request, verb: str, *arguments: Any) -> Any:
    """The result of the engine's `verb`, which is not a stream of tokens."""

    async def work() -> Any:
        try:
            async with asyncio.timeout(service.settings.timeout):
                return await service.engine.compute(verb, *arguments)
        except TimeoutError:
            raise _too_long(service) from None

    return await while_connected(request, work())


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work, and cancel it when the client goes away."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watcher):
            each.cancel()
            with suppress(BaseException):
                await each


def _submit(
    service: Service,
    request: Request,
    prompts: list[list[int]],
    params: SamplingParams,
    use: ToolUse | None,
    whole: bool,
) -> Stream:
    stream = service.engine.submit(prompts, params, use, whole=whole)
    request.scope["record"].prompt_tokens = sum(map(len, prompts))
    return stream


async def _measured(service: Service, request: Request, stream: Stream, n: int, whole: bool) -> Parts:
    """A stream's parts until the time limit, counted for the metrics and the log; the engine's work ends with it."""
    record: Record = request.scope["record"]
    record.stream, last = not whole, [0.0] * stream.sequences
    loop = asyncio.get_running_loop()
    deadline = loop.time() + service.settings.timeout - (time.perf_counter() - record.started)
    parts = stream.parts()
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                found = await anext(parts, None)
            if found is None:
                return
            now = time.perf_counter()
            for part in found:
                record.completion_tokens += part.tokens
                service.metrics.generated(part.tokens)
                if not whole and part.tokens:
                    _observe_token(service, record, now, last[part.choice])
                    last[part.choice] = now
                if part.end is not None:
                    if part.choice % n == 0:  # the first answer to a prompt
                        record.cached_tokens += part.end.cached_tokens
                    _observe_end(service, record, part.end, part.tokens, whole)
            yield found
    except (RequestError, TimeoutError) as error:
        failed = error if isinstance(error, RequestError) else _too_long(service)
        if failed.status == 400:  # the engine refused it
            failed.param = failed.param or record.constrained_by
        record.error = failed.message
        raise failed from None
    finally:
        if stream.running and record.error is None:  # the client has gone
            record.finish_reason = "cancelled"
        stream.close()


def _too_long(service: Service) -> RequestError:
    return RequestError(f"The request took longer than {service.settings.timeout:g} seconds.", None, 504, "timeout")


def _observe_token(service: Service, record: Record, now: float, last: float) -> None:
    if last:
        service.metrics.next_token(now - last)
        return
    service.metrics.first_token(now - record.started)
    record.first_token = record.first_token or now - record.started


def _observe_end(service: Service, record: Record, end: End, tokens: int, whole: bool) -> None:
    service.metrics.sequence_ended(end)
    if whole:  # the sequence's only part, which has all its tokens
        service.metrics.first_token(end.first_token)
        record.first_token = record.first_token or end.first_token
        if tokens > 1:
            service.metrics.next_token((end.total - end.first_token) / (tokens - 1))
    record.finish_reason = end.reason
    if end.reason == "error":
        raise RequestError(STOPPED_EARLY, None, 500)
