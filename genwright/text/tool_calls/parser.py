"""ToolParser: finds tool calls in an answer's text as it streams, name by name and argument by argument."""

import json
from dataclasses import dataclass
from typing import Any

from genwright.text.tool_calls.parameters import is_any, literal_as_json, parameter_schemas, typed_value
from genwright.text.tool_calls.reader import CallReader, Delta, NoCall, Reading
from genwright.text.tool_calls.styles import STYLES, functions


@dataclass(frozen=True)
class ToolCall:
    """A whole call; the arguments are a JSON text."""

    id: str
    name: str
    arguments: str


class ToolParser(CallReader):
    """Feed it an answer's text in pieces of any size; what is found does not depend on where the text is cut.

    What is not a call is text, as it was written; spaces around calls are dropped. The schemas of the tools tell the
    types of values in styles that do not write JSON.
    """

    def __init__(self, style: str, tools: Any = None) -> None:
        self._tools = {each["name"]: each for each in functions(tools)} if tools else {}
        readers = {
            "hermes": self._hermes,
            "qwen3-coder": self._qwen3_coder,
            "llama3": self._llama3,
            "pythonic": self._pythonic,
            "mistral": self._mistral,
            "mistral-args": self._mistral,
            "deepseek": self._deepseek,
            "deepseek-v3.1": self._deepseek,
        }
        super().__init__(STYLES[style], readers[style])

    def whole(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text of a whole answer without its calls, and the calls; a call that is cut off is text."""
        said, names, arguments = "", list[Delta](), dict[int, str]()
        for delta in self.feed(text) + self.finish():
            if delta.kind == "text":
                said += delta.text
            elif delta.kind == "name":
                names.append(delta)
            else:
                arguments[delta.index] = arguments.get(delta.index, "") + delta.text
        calls = [ToolCall(each.id, each.text, arguments.get(each.index, "")) for each in names]
        return (said + self.cut, calls[:-1]) if self.cut else (said, calls)

    def _hermes(self) -> Reading:
        while True:
            yield from self._until("<tool_call>")
            yield from self._json_calls((yield from self._skip()))
            yield from self._close("</tool_call>")

    def _qwen3_coder(self) -> Reading:
        schemas = {name: parameter_schemas(function) for name, function in self._tools.items()}
        heads = [f"<function={name}>" for name in schemas]  # the model sometimes leaves out <tool_call>
        while True:
            head = yield from self._until("<tool_call>", *heads)
            if head == "<tool_call>":
                yield from self._expect("<function=", (yield from self._skip()))
                head = yield from self._read_to(">")
            name = head.removeprefix("<function=").removesuffix(">")
            self._begin_call(name)
            yield from self._xml_parameters(schemas.get(name, {}))
            yield from self._close("</tool_call>")

    def _xml_parameters(self, schemas: dict[str, dict[str, Any]]) -> Reading:
        """`<parameter=key>value</parameter>` and so on, up to `</function>`."""
        before = "{"
        while (tag := (yield from self._read_to(">", start=(yield from self._skip())))) != "</function>":
            if not tag.startswith("<parameter="):
                raise NoCall
            key = tag.removeprefix("<parameter=")[:-1]
            self._add_arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._xml_value(schemas.get(key, {}))
            before = ", "
        self._add_arguments("{}" if before == "{" else "}")
        return ""

    def _xml_value(self, schema: dict[str, Any]) -> Reading:
        """A value without the line breaks around it, and its closing tag; a text is added while it is read."""
        text = yield from self._char()
        start = added = int(text == "\n")
        end, plain = "\n" * start + "</parameter>", is_any("string", schema)
        self._add_arguments('"' if plain else "")
        while not text.endswith(end):
            text += yield from self._char()
            self._raw = ""  # a value that is cut off is not text of the answer
            ready = len(text) - next(n for n in range(len(end), -1, -1) if text.endswith(end[:n]))
            if plain and ready > added:
                self._add_arguments(_inside_quotes(text[added:ready]))
                added = ready
        self._add_arguments('"' if plain else typed_value(text[start : -len(end)], schema))
        return ""

    def _llama3(self) -> Reading:
        if (char := (yield from self._skip())) == "<":
            yield from self._expect("|python_tag|>")
            char = yield from self._skip()
        while char == "{":
            yield from self._json_call()
            char = yield from self._skip(";,")
        raise NoCall  # what follows is text

    def _mistral(self) -> Reading:
        while True:
            yield from self._until("[TOOL_CALLS]")
            if (char := (yield from self._skip())) in "[{":
                yield from self._json_calls(char)
                continue
            head = yield from self._read_to("[ARGS]", "{", start=char)
            name, _, given = head.removesuffix("{").removesuffix("[ARGS]").partition("[CALL_ID]")
            self._begin_call(name.strip(), given.strip())
            yield from self._value("{" if head.endswith("{") else (yield from self._skip()), True)

    def _deepseek(self) -> Reading:
        calls, call, sep, _, calls_end = self._form.markers
        while True:
            if (yield from self._until(calls, call, calls_end)) != call:
                self._raw = ""
                continue
            name = (yield from self._read_to(sep)).removesuffix(sep)
            char = yield from self._skip()
            if char != "{":  # the kind of the tool, which is always a function, was first
                name = yield from self._read_to("\n", start=char)
                yield from self._read_to("{")
            self._begin_call(name.strip())
            yield from self._value("{", True)
            yield from self._close(self._form.end.lstrip())

    def _pythonic(self) -> Reading:
        if (char := (yield from self._skip())) == "<":
            yield from self._expect("|python_start|>")
            char = yield from self._skip()
        if char != "[":
            raise NoCall
        while char in "[,":
            name = (yield from self._read_to("(", start=(yield from self._skip())))[:-1]
            if not name.replace(".", "_").replace("-", "_").isidentifier():
                raise NoCall
            self._begin_call(name)
            yield from self._keywords()
            char = yield from self._skip()
        if char != "]":
            raise NoCall
        self._raw = ""
        if (yield from self._skip()) == "<":
            yield from self._expect("|python_end|>")
            self._raw = ""
        raise NoCall  # what follows is text

    def _keywords(self) -> Reading:
        """Python's keyword arguments, up to the closing parenthesis."""
        before = "{"
        while (char := (yield from self._skip(","))) != ")":
            key = (yield from self._read_to("=", start=char))[:-1].strip()
            value = yield from self._python_value()
            self._add_arguments(f"{before}{json.dumps(key)}: {literal_as_json(value)}")
            before = ", "
        self._add_arguments("{}" if before == "{" else "}")
        return ""

    def _python_value(self) -> Reading:
        text, depth, quote, escaped = "", 0, "", False
        while True:
            char = yield from self._char()
            if not quote and not depth and char in ",)":
                self._pushed_back = char
                return text
            text += char
            if quote:
                quote, escaped = ("" if char == quote and not escaped else quote), not escaped and char == "\\"
            elif char in "\"'":
                quote = char
            else:
                depth += (char in "{[(") - (char in "}])")


def parse_tool_calls(text: str, style: str, tools: Any = None) -> tuple[str, list[ToolCall]]:
    """The text of a whole answer without its calls, and the calls; see `ToolParser.whole`."""
    return ToolParser(style, tools).whole(text)


def _inside_quotes(text: str) -> str:
    """A text in JSON, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
