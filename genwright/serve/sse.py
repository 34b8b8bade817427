"""Server-sent events as bytes, and the response that streams them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not hold events back
]
DONE = b"data: [DONE]\n\n"
quote = json.encoder.encode_basestring_ascii  # a text as JSON


def compact(value: Any) -> bytes:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """An event without a name, as OpenAI's chat completions have."""
    return b"data: " + compact(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    return f"event: {name}\n".encode() + event(value)


class EventStream:
    """An ASGI response of events; the generator is closed as soon as the client goes away."""

    status_code = 200

    def __init__(self, events: AsyncGenerator[bytes, None]):
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def watch() -> None:
            nonlocal gone
            await until_gone(receive)
            gone = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async for data in self.events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            watcher.cancel()
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
            await self.events.aclose()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
