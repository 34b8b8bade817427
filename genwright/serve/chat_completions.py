"""POST /v1/chat/completions, as OpenAI's clients speak it."""

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from genwright.serve.chat_messages import template_messages
from genwright.serve.chat_prompt import ChatPrompt, constraining_field
from genwright.serve.field_checks import object_of
from genwright.serve.frames import End, ToolUse
from genwright.serve.generation import Choice, Parts, complete, open_stream, prepare, usage
from genwright.serve.http_errors import RequestError
from genwright.serve.logprobs import TokenTexts
from genwright.serve.request_fields import CHAT, constraint, response_schema, sampling_fields
from genwright.serve.service import FINGERPRINT, Service
from genwright.serve.sse import DONE, EventStream, compact, event, quote
from genwright.text.engine.request import Logprob

SCHEMA = object_of(CHAT, "messages")


async def chat_completions(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any] | EventStream:
    name = service.model_name(given, request.scope["record"])
    request.scope["record"].constrained_by = constraining_field(given, "response_format")
    asked = sampling_fields(given) | constraint(given, response_schema(given.get("response_format")), "response_format")
    messages = template_messages(given["messages"])
    chat = await prepare(request, ChatPrompt, service, messages, tool_use(given), asked)
    if given.get("logprobs"):
        asked["logprobs"] = given.get("top_logprobs", 0)
    elif "top_logprobs" in given:
        raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
    if "max_completion_tokens" in given and "max_tokens" in given:
        raise RequestError("Only one of max_tokens, max_completion_tokens can be given.", "max_tokens")
    param = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    params = service.params(asked, [chat.ids], given.get(param), param)
    writer = ChatWriter(f"chatcmpl-{secrets.token_hex(12)}", name, TokenTexts(service.tokenizer), chat)
    if given.get("stream"):
        include_usage = bool(given.get("stream_options", {}).get("include_usage"))
        parts = await open_stream(service, request, [chat.ids], params, chat.use)
        return EventStream(writer.events(parts, params.n, include_usage))
    if "stream_options" in given:
        raise RequestError("stream_options needs stream to be true.", "stream_options")
    choices = await complete(service, request, [chat.ids], params, chat.use)
    return {
        **writer.head("chat.completion"),
        "choices": [writer.choice(index, choice, params.logprobs is not None) for index, choice in enumerate(choices)],
        "usage": usage(choices, params.n).openai(),
    }


def tool_use(given: Mapping[str, Any]) -> ToolUse:
    """The tools of a chat completion, and which of them must be called."""
    tools = given.get("tools", [])
    return ToolUse(tools, given.get("tool_choice", "auto"), given.get("parallel_tool_calls", True))


def finish_reason(end: End, called: bool) -> str:
    return "tool_calls" if called and end.reason == "stop" else end.reason


@dataclass
class ChatWriter:
    """Writes the answers of one request."""

    id: str
    model: str
    tokens: TokenTexts
    chat: ChatPrompt

    def head(self, kind: str) -> dict[str, Any]:
        known = {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}
        return {**known, "system_fingerprint": FINGERPRINT}

    def choice(self, index: int, choice: Choice, logprobs: bool) -> dict[str, Any]:
        """A whole answer."""
        assert choice.end is not None
        answer = self.chat.parse(choice.text)
        content = answer.text + answer.cut or (None if answer.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.calls:
            message["tool_calls"] = answer.calls
        found: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": {"content": self.tokens.chat(choice.logprobs), "refusal": None} if logprobs else None,
            "finish_reason": finish_reason(choice.end, answer.called),
        }
        if choice.end.prompt_logprobs is not None:
            found["prompt_logprobs"] = self.tokens.prompt(choice.end.prompt_logprobs)
        return found

    async def events(self, parts: Parts, n: int, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed answer, as bytes: one for each piece of text or of a tool call."""
        head = compact(self.head("chat.completion.chunk"))[:-1] + (b',"usage":null' if include_usage else b"")
        start = b"data: " + head + b',"choices":[{"index":'
        choices = [Choice() for _ in range(n)]
        parsers = [self.chat.parser() for _ in range(n)]
        called = [False] * n

        def chunk(index: int, delta: bytes, logprobs: bytes = b"null", reason: bytes = b"null") -> bytes:
            return b'%b%d,"delta":%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (start, index, delta, logprobs, reason)

        try:
            yield b"".join(chunk(index, b'{"role":"assistant","content":null}') for index in range(n))
            async for found in parts:
                written = []
                for part in found:
                    index, parser = part.choice, parsers[part.choice]
                    choices[index].add(part)
                    deltas = [*parser.feed(part.text), *(parser.finish() if part.end is not None else ())]
                    pieces = [self.chat.delta(delta) for delta in deltas if delta.text or delta.kind == "name"]
                    called[index] |= any(delta.kind == "name" for delta in deltas)
                    logprobs = self._logprobs(part.logprobs)
                    if part.logprobs and not pieces:
                        pieces = [b'{"content":""}']
                    for piece in pieces:
                        written.append(chunk(index, piece, logprobs))
                        logprobs = b"null"
                    if part.end is not None:
                        whole = called[index] and not parser.cut
                        reason = quote(finish_reason(part.end, whole)).encode()
                        written.append(chunk(index, b"{}", reason=reason))
                if written:
                    yield b"".join(written)
            if include_usage:
                yield event({**self.head("chat.completion.chunk"), "choices": [], "usage": usage(choices, n).openai()})
        except RequestError as error:
            yield event(error.openai())
        finally:
            await parts.aclose()
        yield DONE

    def _logprobs(self, logprobs: Any) -> bytes:
        found: list[Logprob] = list(logprobs)
        return compact({"content": self.tokens.chat(found), "refusal": None}) if found else b"null"
