"""POST /v1/responses, as OpenAI's clients speak it; nothing is kept between two requests."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from genwright.serve.chat_messages import Messages, arguments_object, check_tool_history, tool_call
from genwright.serve.chat_prompt import ChatPrompt, constraining_field, named_choice
from genwright.serve.field_checks import object_of
from genwright.serve.frames import ToolUse
from genwright.serve.generation import Choice, Usage, complete, open_stream, prepare, usage
from genwright.serve.http_errors import RequestError
from genwright.serve.logprobs import TokenTexts
from genwright.serve.request_fields import constraint, response_schema, sampling_fields
from genwright.serve.response_fields import RESPONSE
from genwright.serve.response_items import call_item, message_item, output_text
from genwright.serve.response_stream import response_events
from genwright.serve.service import Service
from genwright.serve.sse import EventStream
from genwright.text.tokenizer.chat_template import joined

SCHEMA = object_of(RESPONSE, "input")


async def responses(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any] | EventStream:
    name = service.model_name(given, request.scope["record"])
    request.scope["record"].constrained_by = constraining_field(given, "text")
    asked = sampling_fields(given) | constraint(given, _schema(given), "text.format")
    if "message.output_text.logprobs" in given.get("include", ()):
        asked["logprobs"] = given.get("top_logprobs", 0)
    elif "top_logprobs" in given:
        raise RequestError("top_logprobs needs include to have message.output_text.logprobs.", "top_logprobs")
    messages = template_messages(given["input"], given.get("instructions"))
    chat = await prepare(request, ChatPrompt, service, messages, _tool_use(given), asked)
    params = service.params(asked, [chat.ids], given.get("max_output_tokens"), "max_output_tokens")
    shown = {"temperature": params.temperature, "top_p": params.top_p}
    response = ResponseWriter(given, name, TokenTexts(service.tokenizer), chat, shown)
    if given.get("stream"):
        parts = await open_stream(service, request, [chat.ids], params, chat.use)
        return EventStream(response_events(parts, chat, response.snapshot, response.tokens))
    choice = (await complete(service, request, [chat.ids], params, chat.use))[0]
    return response.whole(choice)


def _schema(given: Mapping[str, Any]) -> Any:
    """The schema of `text.format`, which has its fields one level higher than `response_format`."""
    form = given.get("text", {}).get("format")
    if form is None or form["type"] != "json_schema":
        return response_schema(form)
    if form.get("schema") is None:
        raise RequestError("text.format.schema is missing.", "text.format.schema")
    return form["schema"]


def _tool_use(given: Mapping[str, Any]) -> ToolUse:
    tools = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in given.get("tools", ())
    ]
    choice = given.get("tool_choice", "auto")
    return ToolUse(
        tools,
        choice if isinstance(choice, str) else named_choice(choice["name"]),
        given.get("parallel_tool_calls", True),
    )


def template_messages(given: Any, instructions: str | None) -> Messages:
    """The items of an input in the form of chat templates; calls that follow each other are one message."""
    found: Messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    places = ["instructions"] * len(found)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in enumerate(items):
        kind, last = item.get("type", "message"), found[-1] if found else {}
        if kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            found.append({"role": role, "content": joined(item["content"])})
        elif kind == "function_call":
            arguments = arguments_object(item["arguments"], f"input[{index}].arguments")
            call = tool_call(item["call_id"], item["name"], arguments)
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        else:
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": joined(item["output"])})
        if len(found) > len(places):  # a call may have joined the message before it
            places.append(f"input[{index}]")
    check_tool_history(found, places, "call_id")
    return found


class ResponseWriter:
    """Writes the response object of one request."""

    def __init__(
        self, given: Mapping[str, Any], model: str, tokens: TokenTexts, chat: ChatPrompt, shown: Mapping[str, Any]
    ):
        self.tokens, self.chat = tokens, chat
        self._head = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": given.get("metadata", {}),
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "background": False,
            **shown,
            "text": {"format": given.get("text", {}).get("format", {"type": "text"})},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_logprobs": given.get("top_logprobs", 0),
            "truncation": "disabled",
            "user": given.get("user"),
        }

    def snapshot(self, output: list[dict[str, Any]], choice: Choice | None = None) -> dict[str, Any]:
        """The response so far; complete with the choice that has ended."""
        if choice is None or choice.end is None:
            return {**self._head, "status": "in_progress", "incomplete_details": None, "output": output, "usage": None}
        cut = choice.end.reason == "length"
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": _usage(usage([choice], 1)),
        }

    def whole(self, choice: Choice) -> dict[str, Any]:
        answer, logprobs = self.chat.parse(choice.text), self.tokens.chat(choice.logprobs)
        functions = [(call["id"], call["function"]) for call in answer.calls]
        output = [message_item([output_text(answer.text, logprobs)])] if answer.text else []
        output += [call_item(id_, function["name"], function["arguments"]) for id_, function in functions]
        if answer.cut or not output:
            output.append(message_item([output_text(answer.cut, [] if output else logprobs)]))
        if answer.cut or (choice.end is not None and choice.end.reason == "length"):
            output[-1]["status"] = "incomplete"
        return self.snapshot(output, choice)


def _usage(counted: Usage) -> dict[str, Any]:
    return {
        "input_tokens": counted.prompt,
        "input_tokens_details": {"cached_tokens": counted.cached},
        "output_tokens": counted.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted.prompt + counted.completion,
    }
