"""The messages of a chat, checked and in the form that chat templates read."""

import json
from typing import Any

from genwright.serve.http_errors import RequestError
from genwright.text.tokenizer.chat_template import joined

Messages = list[dict[str, Any]]


def template_messages(given: list[dict[str, Any]]) -> Messages:
    """The messages of a chat completion; content is joined to one text, and arguments of calls are objects."""
    found = []
    for index, message in enumerate(given):
        place = f"messages[{index}]"
        role, calls = message["role"], message.get("tool_calls")
        content = joined(message.get("content"))
        if content is None and not (role == "assistant" and calls):
            raise RequestError(f"{place}.content is missing.", f"{place}.content")
        each: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content or ""}
        if calls:
            if role != "assistant":
                raise RequestError(f"{place}.tool_calls is only for the assistant.", f"{place}.tool_calls")
            each["tool_calls"] = [_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)]
        if role == "tool":
            if message.get("tool_call_id") is None:
                raise RequestError(f"{place}.tool_call_id is missing.", f"{place}.tool_call_id")
            each["tool_call_id"] = message["tool_call_id"]
        if message.get("name") is not None:
            each["name"] = message["name"]
        found.append(each)
    check_tool_history(found, [f"messages[{index}]" for index in range(len(found))], "tool_call_id")
    return found


def tool_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as chat templates read it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_object(text: str, place: str) -> dict[str, Any]:
    """The arguments of a call, which clients send as a text of JSON."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"{place} must be the text of a JSON object, not {text[:60]!r}.", place)
    return arguments


def _call(call: dict[str, Any], place: str) -> dict[str, Any]:
    function = call["function"]
    arguments = arguments_object(function["arguments"], f"{place}.function.arguments")
    return tool_call(call["id"], function["name"], arguments)


def check_tool_history(messages: Messages, places: list[str], id_field: str) -> None:
    """Every result must follow its call, and every call must have its result; `places` are those in the body."""
    open_calls: dict[str, str] = {}  # id -> name, of calls without a result
    caller = ""  # the place of the message that made them
    for message, place in zip(messages, places, strict=True):
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            if call_id not in open_calls:
                sentence = f"{place} is the result of {call_id[:60]!r}, but no call before it waits for that result."
                raise RequestError(sentence, f"{place}.{id_field}")
            message.setdefault("name", open_calls.pop(call_id))  # which some templates write
            continue
        _check_results(open_calls, caller)
        open_calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        caller = place
    _check_results(open_calls, caller)


def _check_results(open_calls: dict[str, str], caller: str) -> None:
    if open_calls:
        missing = ", ".join(repr(each[:60]) for each in open_calls)
        raise RequestError(f"{caller} has calls without a result: {missing}.", caller)
