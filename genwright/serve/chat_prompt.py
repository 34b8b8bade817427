"""ChatPrompt: the token ids of a chat, with its tools, and the tool calls in the answer's text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from genwright.serve.chat_messages import Messages, tool_call
from genwright.serve.http_errors import RequestError
from genwright.serve.service import Service
from genwright.serve.sse import quote
from genwright.text.tokenizer.control_tokens import MARK


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: of its text, or of one of its tool calls."""

    kind: str  # text, name or arguments
    index: int
    id: str
    text: str


@dataclass(frozen=True)
class ToolUse:
    """The tools that the model may call, in the form of chat completions."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: str = "auto"  # none, auto, required, or a tool's name
    parallel: bool = True


class PlainText:
    """The parser of an answer without tools."""

    def feed(self, text: str) -> Sequence[Delta]:
        return [Delta("text", 0, "", text)] if text else []

    def finish(self) -> Sequence[Delta]:
        return []


class ChatPrompt:
    """A chat that the model is to answer; `prefill` is the beginning of the answer.

    What the tools ask of the sampling is added to `asked`.
    """

    def __init__(self, service: Service, messages: Messages, use: ToolUse, asked: dict[str, Any], prefill: str = ""):
        if use.tools and use.choice != "none":
            raise RequestError("tools are not supported by this model's chat template.", "tools")
        tokenizer = service.need_tokenizer()
        marked = tokenizer.render(messages, mark=True) + tokenizer.mark(prefill)
        self.text = marked.replace(MARK, "")
        self.ids = tokenizer.encode_rendered(marked)

    def parser(self) -> PlainText:
        """Reads one answer's text, piece by piece."""
        return PlainText()

    def parse(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The text and the tool calls of a whole answer."""
        content, calls = "", dict[int, dict[str, Any]]()
        parser = self.parser()
        for delta in (*parser.feed(text), *parser.finish()):
            if delta.kind == "text":
                content += delta.text
            elif delta.kind == "name":
                calls[delta.index] = tool_call(delta.id, delta.text, "")
            else:
                calls[delta.index]["function"]["arguments"] += delta.text
        return content, list(calls.values())

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
