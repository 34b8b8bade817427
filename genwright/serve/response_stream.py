"""The events of a streamed response: each item of its output is added, grows, and is done."""

import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from genwright.serve.chat_prompt import ChatPrompt
from genwright.serve.generation import Choice, Parts
from genwright.serve.http_errors import RequestError
from genwright.serve.logprobs import TokenTexts
from genwright.serve.response_items import call_item, message_item, output_text
from genwright.serve.sse import named_event
from genwright.text.tool_calls import Delta

Snapshot = Callable[[list[dict[str, Any]], Choice | None], dict[str, Any]]


class ItemStream:
    """Numbers the events, and keeps the item that grows."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []  # items that are done
        self._sequence = 0
        self._kind = ""  # of the item that grows: text, or the number of a call
        self._id = self._text = self._call_id = self._name = ""
        self._logprobs: list[dict[str, Any]] = []

    @property
    def empty(self) -> bool:
        return not (self.output or self._kind)

    def event(self, kind: str, /, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event(kind, {"type": kind, "sequence_number": self._sequence - 1, **fields})

    def add(self, delta: Delta, logprobs: list[dict[str, Any]]) -> Iterator[bytes]:
        """The events of a piece of the answer."""
        kind = "text" if delta.kind == "text" else f"call {delta.index}"
        if kind != self._kind:
            yield from self.close()
            yield from self._open(kind, delta)
        self._logprobs += logprobs
        if delta.kind == "name" or not (delta.text or logprobs):
            return
        self._text += delta.text
        place = {"item_id": self._id, "output_index": len(self.output)}
        if delta.kind == "text":
            known = {**place, "content_index": 0, "delta": delta.text, "logprobs": logprobs}
            yield self.event("response.output_text.delta", **known)
        else:
            yield self.event("response.function_call_arguments.delta", **place, delta=delta.text)

    def _open(self, kind: str, delta: Delta) -> Iterator[bytes]:
        self._kind, self._text, self._logprobs = kind, "", []
        place = {"output_index": len(self.output)}
        if kind == "text":
            self._id = f"msg_{secrets.token_hex(12)}"
            item = message_item([], self._id, "in_progress")
            yield self.event("response.output_item.added", **place, item=item)
            part = {"content_index": 0, "item_id": self._id, "part": output_text("", [])}
            yield self.event("response.content_part.added", **place, **part)
        else:
            self._id, self._call_id, self._name = f"fc_{secrets.token_hex(12)}", delta.id, delta.text
            item = call_item(delta.id, delta.text, "", self._id, "in_progress")
            yield self.event("response.output_item.added", **place, item=item)

    def close(self, status: str = "completed") -> Iterator[bytes]:
        """The events that end the item which grew."""
        if not self._kind:
            return
        place = {"item_id": self._id, "output_index": len(self.output)}
        if self._kind == "text":
            part = output_text(self._text, self._logprobs)
            item = message_item([part], self._id, status)
            known = {**place, "content_index": 0}
            yield self.event("response.output_text.done", **known, text=self._text, logprobs=self._logprobs)
            yield self.event("response.content_part.done", **known, part=part)
        else:
            item = call_item(self._call_id, self._name, self._text, self._id, status)
            done = {"name": self._name, "arguments": self._text}
            yield self.event("response.function_call_arguments.done", **place, **done)
        yield self.event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self._kind = ""


async def response_events(
    parts: Parts, chat: ChatPrompt, snapshot: Snapshot, tokens: TokenTexts
) -> AsyncGenerator[bytes, None]:
    """All events of a response."""
    items, choice, parser = ItemStream(), Choice(), chat.parser()
    try:
        for name in ("response.created", "response.in_progress"):
            yield items.event(name, response=snapshot([], None))
        async for found in parts:
            written: list[bytes] = []
            for part in found:
                choice.add(part)
                deltas = [*parser.feed(part.text), *(parser.finish() if part.end is not None else ())]
                logprobs = tokens.chat(part.logprobs)
                if logprobs and not deltas:
                    deltas = [Delta("text", 0, "", "")]
                for delta in deltas:
                    written += items.add(delta, logprobs)
                    logprobs = []
            if written:
                yield b"".join(written)
        assert choice.end is not None
        if items.empty:
            yield b"".join(items.add(Delta("text", 0, "", ""), []))
        cut = choice.end.reason == "length"
        yield b"".join(items.close("incomplete" if cut or parser.cut else "completed"))
        name = "response.incomplete" if cut else "response.completed"
        yield items.event(name, response=snapshot(items.output, choice))
    except RequestError as error:
        failed = {**snapshot(items.output, None), "status": "failed"}
        failed["error"] = {"code": "server_error", "message": error.message}
        yield items.event("response.failed", response=failed)
    finally:
        await parts.aclose()
