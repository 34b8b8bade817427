"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak it."""

import json
import secrets
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from genwright.serve.chat_messages import Messages, check_tool_history, tool_call
from genwright.serve.chat_prompt import ChatPrompt, constraining_field, named_choice
from genwright.serve.field_checks import object_of
from genwright.serve.frames import End, ToolUse
from genwright.serve.generation import Choice, Parts, complete, open_stream, prepare, usage
from genwright.serve.http_errors import RequestError
from genwright.serve.message_fields import MESSAGES
from genwright.serve.service import Service
from genwright.serve.sse import EventStream, named_event, quote

SCHEMA = object_of(MESSAGES, "model", "messages", "max_tokens")
COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
COUNT_SCHEMA = object_of({name: MESSAGES[name] for name in COUNTED}, "model", "messages")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # others name a tool
_REASONS = {"stop": "end_turn", "length": "max_tokens"}


async def messages(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any] | EventStream:
    name = service.model_name(given, request.scope["record"])
    request.scope["record"].constrained_by = constraining_field(given, "output_config")
    asked: dict[str, Any] = {key: given[key] for key in ("temperature", "top_k", "top_p") if key in given}
    asked["stop"] = tuple(given.get("stop_sequences", ()))
    if (form := given.get("output_config", {}).get("format")) is not None:
        asked["schema"] = form["schema"]
    chat = await prepare(request, _prompt, service, given, asked)
    params = service.params(asked, [chat.ids], given["max_tokens"], "max_tokens")
    if given.get("stream"):
        parts = await open_stream(service, request, [chat.ids], params, chat.use)
        return EventStream(_events(parts, chat, name, len(chat.ids)))
    choice = (await complete(service, request, [chat.ids], params, chat.use))[0]
    assert choice.end is not None
    answer = chat.parse(choice.text)
    content = [_text_block(answer.text)] if answer.text or not (answer.calls or answer.cut) else []
    for call in answer.calls:
        function = call["function"]
        content.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        )
    content += [_text_block(answer.cut)] if answer.cut else []
    counted = usage([choice], 1)
    return {
        **_head(name),
        "content": content,
        **_stop(choice.end, answer.called),
        "usage": {**_input_usage(counted.prompt, counted.cached), "output_tokens": counted.completion},
    }


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def count_tokens(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    service.model_name(given, request.scope["record"])
    return {"input_tokens": len((await prepare(request, _prompt, service, given, {})).ids)}


def _prompt(service: Service, given: dict[str, Any], asked: dict[str, Any]) -> ChatPrompt:
    """The chat of a request; a last message of the assistant is the beginning of the answer."""
    found = template_messages(given["messages"], given.get("system"))
    prefill = ""
    if found[-1]["role"] == "assistant" and "tool_calls" not in found[-1]:
        prefill = found.pop()["content"]
        if not found or prefill != prefill.rstrip():
            what = "is the only message" if not found else "ends with white space"
            raise RequestError(f"The last message, the assistant's, {what}.", "messages")
    tools = [
        {"type": "function", "function": {**_described(tool), "parameters": tool["input_schema"]}}
        for tool in given.get("tools", ())
    ]
    choice = given.get("tool_choice", {"type": "auto"})
    kind: Any = _CHOICES.get(choice["type"]) or named_choice(choice["name"])
    return ChatPrompt(service, found, ToolUse(tools, kind, not choice.get("disable_parallel_tool_use")), asked, prefill)


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}


def template_messages(given: list[dict[str, Any]], system: Any) -> Messages:
    """Anthropic's messages in the form of chat templates: results of tools are messages of their own."""
    found: Messages = [] if system is None else [{"role": "system", "content": _text(system)}]
    places = ["system"] * len(found)
    for index, message in enumerate(given):
        role, content = message["role"], message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text, calls = "", []
        for number, block in enumerate(blocks):
            place, kind = f"messages[{index}].content[{number}]", block["type"]
            if (kind == "tool_use") != (role == "assistant") and kind != "text":
                raise RequestError(f"{place}: a {role} message cannot have a block {kind}.", place)
            if kind == "text":
                text += block["text"]
            elif kind == "tool_use":
                calls.append(tool_call(block["id"], block["name"], block["input"]))
            else:
                result = _text(block.get("content") or "")
                result = f"Error: {result}" if block.get("is_error") else result
                found.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": result})
                places.append(place)
        if text or calls or not any(block["type"] == "tool_result" for block in blocks):
            found.append({"role": role, "content": text, **({"tool_calls": calls} if calls else {})})
            places.append(f"messages[{index}]")
    check_tool_history(found, places, "tool_use_id")
    return found


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _head(name: str) -> dict[str, Any]:
    return {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": name}


def _stop(end: End, called: bool) -> dict[str, Any]:
    reason = "stop_sequence" if end.stop_text is not None else _REASONS[end.reason]
    return {"stop_reason": "tool_use" if called and end.reason == "stop" else reason, "stop_sequence": end.stop_text}


def _input_usage(prompt: int, cached: int) -> dict[str, int]:
    """Anthropic's input tokens are those that were not found in the cache."""
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


async def _events(parts: Parts, chat: ChatPrompt, name: str, prompt: int) -> AsyncGenerator[bytes, None]:
    """The events of a streamed message: one block for the text and one for each tool call."""
    choice, parser, block, opened, called = Choice(), chat.parser(), -1, "", False
    start = {**_head(name), "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**_input_usage(prompt, 0), "output_tokens": 0}

    def close() -> bytes:
        return named_event("content_block_stop", {"type": "content_block_stop", "index": block}) if opened else b""

    try:
        yield named_event("message_start", {"type": "message_start", "message": start})
        async for found in parts:
            written = []
            for part in found:
                choice.add(part)
                for delta in (*parser.feed(part.text), *(parser.finish() if part.end is not None else ())):
                    kind = "text" if delta.kind == "text" else f"call {delta.index}"
                    if kind != opened:
                        written.append(close())
                        block, opened, called = block + 1, kind, called or kind != "text"
                        written.append(_block_start(block, delta.kind, delta.id, delta.text))
                    if delta.kind != "name" and delta.text:
                        written.append(_block_delta(block, delta.kind, delta.text))
            if any(written):
                yield b"".join(written)
        assert choice.end is not None
        if not opened:
            block, opened = 0, "text"
            yield _block_start(0, "text", "", "")
        counted = usage([choice], 1)
        yield (
            close()
            + named_event(
                "message_delta",
                {
                    "type": "message_delta",
                    "delta": _stop(choice.end, called and not parser.cut),
                    "usage": {**_input_usage(counted.prompt, counted.cached), "output_tokens": counted.completion},
                },
            )
            + named_event("message_stop", {"type": "message_stop"})
        )
    except RequestError as error:
        yield named_event("error", error.anthropic())
    finally:
        await parts.aclose()


def _block_start(index: int, kind: str, call_id: str, name: str) -> bytes:
    block: dict[str, Any] = {"type": "text", "text": ""}
    if kind != "text":
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return named_event("content_block_start", {"type": "content_block_start", "index": index, "content_block": block})


def _block_delta(index: int, kind: str, text: str) -> bytes:
    delta = b'{"type":"text_delta","text":%b}' if kind == "text" else b'{"type":"input_json_delta","partial_json":%b}'
    start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
    return start + delta % quote(text).encode() + b"}\n\n"
