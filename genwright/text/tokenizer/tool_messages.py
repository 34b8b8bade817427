"""The messages of a chat with tools, rewritten so that the chat template omits nothing."""

import hashlib
from collections.abc import Callable
from typing import Any

from genwright.errors import UserError
from genwright.text.tokenizer.chat_template import Messages, with_texts
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tool_calls import described_tools, tool_style, written_calls
from genwright.text.tool_calls.styles import DEFAULT


def render_with_tools(tokenizer: Tokenizer, messages: Messages, tools: Any, mark: bool) -> str:
    """Render a conversation; tools, calls and results that the template does not write become parts of texts."""
    style = tool_style(tokenizer.chat_template or "")
    messages, own = with_texts(messages), tools if tools and style else None
    if any(_functions(message) or message["role"] == "tool" for message in messages):
        if style in ("mistral", "mistral-args"):
            messages = [_with_short_ids(message) for message in messages]
        if style is None or not _writes(tokenizer, *_probe(messages, _with_probed_calls), own):
            messages = [_with_written_calls(message, style or DEFAULT) for message in messages]
        if not _writes(tokenizer, *_probe(messages, _with_probed_result), own):
            messages = _with_written_results(messages)
    if tools and (own is None or not _writes(tokenizer, messages, *_probe(tools, _with_probed_name)[::-1])):
        description = described_tools(tools, style or DEFAULT)
        own, messages = None, _with_description(tokenizer, messages, description)
    return tokenizer.render(messages, mark, own)


def _writes(tokenizer: Tokenizer, messages: Messages, words: list[str], tools: Any = None) -> bool:
    """Whether the template takes these messages and writes these words."""
    try:
        text = tokenizer.render(messages, tools=tools)
    except UserError:
        return False
    return all(word in text for word in words)


def _functions(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The functions that a message calls; those of another form are left to the template."""
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    found = [call.get("function", call) if isinstance(call, dict) else call for call in calls]
    return found if all(isinstance(each, dict) and "name" in each and "arguments" in each for each in found) else []


def _probe(values: Messages, probed: Callable[[dict[str, Any], Callable[[], str]], Any]) -> tuple[Messages, list[str]]:
    """Messages or tools in which words stand for what may be left out, and the words."""
    words: list[str] = []

    def word() -> str:
        words.append(f"probe{len(words)}probe")
        return words[-1]

    return [{**value, **probed(value, word)} for value in values], words


def _with_probed_calls(message: dict[str, Any], word: Callable[[], str]) -> dict[str, Any]:
    if not _functions(message):
        return {}
    made = [{"name": word(), "arguments": {"key": word()}} for _ in message["tool_calls"]]
    calls = [
        {**call, "function": function} if "function" in call else {**call, **function}
        for call, function in zip(message["tool_calls"], made, strict=True)
    ]
    return {"tool_calls": calls}


def _with_probed_result(message: dict[str, Any], word: Callable[[], str]) -> dict[str, Any]:
    return {"content": word()} if message["role"] == "tool" else {}


def _with_probed_name(tool: dict[str, Any], word: Callable[[], str]) -> dict[str, Any]:
    return {"function": {**tool["function"], "name": word()}}


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have ids of nine characters, which Mistral's templates demand."""
    found = dict(message)
    if _functions(message):
        found["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in message["tool_calls"]]
    if message["role"] == "tool":
        found["tool_call_id"] = _short_id(message.get("tool_call_id"))
    return found


def _short_id(given: Any) -> str:
    text = str(given)
    return (
        text if len(text) == 9 and text.isalnum() else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]
    )


def _with_written_calls(message: dict[str, Any], style: str) -> dict[str, Any]:
    """A message whose calls are part of its text."""
    functions = _functions(message)
    if not functions:
        return message
    text = "\n".join(filter(None, [message["content"], written_calls(functions, style)]))
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": text}


def _with_written_results(messages: Messages) -> Messages:
    """Messages with tool results as user messages; adjacent results and the user's next message are one message."""
    found: Messages = []
    after_result = False  # whether the last message is one of results
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if after_result:
                found[-1]["content"] += f"\n{result}"
            else:
                found.append({"role": "user", "content": result})
            after_result = True
        elif after_result and message["role"] == "user":
            found[-1]["content"] += f"\n{message['content']}"
            after_result = False
        else:
            found.append(message)
            after_result = False
    return found


def _with_description(tokenizer: Tokenizer, messages: Messages, description: str) -> Messages:
    """Messages with the tools in the system message, or in the user's first one if the template has no system role."""
    system = messages[0] if messages[0]["role"] == "system" else {"role": "system", "content": ""}
    others = messages[1:] if messages[0]["role"] == "system" else messages
    content = "\n\n".join(filter(None, [system["content"], description]))
    found = [{**system, "content": content}, *others]
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None or _writes(tokenizer, found, [description.partition("\n")[0]]):
        return found
    user = {**messages[first], "content": f"{description}\n\n{messages[first]['content']}"}
    return [*messages[:first], user, *messages[first + 1 :]]
