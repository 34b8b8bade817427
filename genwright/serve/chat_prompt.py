"""ChatPrompt: the token ids of a chat, with its tools, and the tool calls in the answer's text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from genwright.errors import UserError
from genwright.serve.chat_messages import Messages, tool_call
from genwright.serve.frames import ToolUse
from genwright.serve.http_errors import RequestError
from genwright.serve.service import Service
from genwright.serve.sse import quote
from genwright.text.tokenizer.control_tokens import MARK
from genwright.text.tokenizer.tool_messages import render_with_tools
from genwright.text.tool_calls import Delta, ToolParser, chosen_functions, tool_style
from genwright.text.tool_calls.styles import DEFAULT


def named_choice(name: str) -> dict[str, Any]:
    """The choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def constraining_field(given: Mapping[str, Any], schema_field: str) -> str | None:
    """The field of a body that constrains the answer's text."""
    return next((name for name in ("regex", "grammar", "tools", schema_field) if given.get(name)), None)


class Parser(Protocol):
    """Reads an answer's text, piece by piece."""

    def feed(self, text: str) -> Sequence[Delta]: ...

    def finish(self) -> Sequence[Delta]: ...

    @property
    def cut(self) -> str:
        """The text of a call that is not whole."""


class PlainText:
    """The parser of an answer without tools."""

    cut = ""

    def feed(self, text: str) -> list[Delta]:
        return [Delta("text", 0, "", text)] if text else []

    def finish(self) -> list[Delta]:
        return []


class Answer(NamedTuple):
    """A whole answer: its text, the calls after it, and the text of a last call that is cut off."""

    text: str
    calls: list[dict[str, Any]]
    cut: str

    @property
    def called(self) -> bool:
        """Whether it has calls and none is cut off."""
        return bool(self.calls) and not self.cut


class ChatPrompt:
    """A chat that the model is to answer; `prefill` is the beginning of the answer.

    `use` is for the engine, whose grammar makes calls right; None if there are no tools.
    """

    def __init__(self, service: Service, messages: Messages, use: ToolUse, asked: dict[str, Any], prefill: str = ""):
        tokenizer = service.need_tokenizer()
        tools = use.tools if use.choice != "none" else []
        self._style, self._tools = tool_style(tokenizer.chat_template or "") or DEFAULT, tools
        self.use = use if tools else None
        if not tools and use.choice not in ("none", "auto"):
            raise RequestError("tool_choice needs tools to choose from.", "tool_choice")
        if tools:
            if constrained := [name for name in ("schema", "regex", "grammar") if name in asked]:
                raise RequestError(
                    f"tools cannot be combined with a {constrained[0]}; pass tool_choice none, or no {constrained[0]}.",
                    "tools",
                )
            try:
                chosen_functions(tools, use.choice)
            except UserError as error:
                raise RequestError(str(error), "tools" if str(error).startswith("tools") else "tool_choice") from None
        marked = render_with_tools(tokenizer, messages, tools, mark=True) + tokenizer.mark(prefill)
        self.text = marked.replace(MARK, "")
        self.ids = tokenizer.encode_rendered(marked)

    def parser(self) -> Parser:
        """Reads one answer's text, piece by piece."""
        return ToolParser(self._style, self._tools) if self._tools else PlainText()

    def parse(self, text: str) -> Answer:
        if not self._tools:
            return Answer(text, [], "")
        parser = ToolParser(self._style, self._tools)
        said, calls = parser.whole(text)
        found = [tool_call(call.id, call.name, call.arguments) for call in calls]
        return Answer(said.removesuffix(parser.cut), found, parser.cut)

    @staticmethod
    def delta(delta: Delta) -> bytes:
        """A piece of an answer as the `delta` of a chunk."""
        text = quote(delta.text).encode()
        if delta.kind == "text":
            return b'{"content":%b}' % text
        if delta.kind == "name":
            call = b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}'
            return b'{"tool_calls":[' + call % (delta.index, quote(delta.id).encode(), text) + b"]}"
        return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (delta.index, text)
