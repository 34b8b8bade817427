"""ToolParser: finds tool calls in an answer's text as it streams, name by name and argument by argument."""

import ast
import json
from dataclasses import dataclass

from genwright.text.tool_calls.reader import CallReader, Delta, NoCall, Reading
from genwright.text.tool_calls.styles import STYLES

_JSON_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class ToolCall:
    """A whole call; the arguments are a JSON text."""

    id: str
    name: str
    arguments: str


class ToolParser(CallReader):
    """Feed it an answer's text in pieces of any size; what is found does not depend on where the text is cut.

    What is not a call is text, as it was written; spaces around calls are dropped.
    """

    def __init__(self, style: str) -> None:
        readers = {
            "hermes": self._hermes,
            "llama3": self._llama3,
            "pythonic": self._pythonic,
            "mistral": self._mistral,
            "mistral-args": self._mistral,
            "deepseek": self._deepseek,
            "deepseek-v3.1": self._deepseek,
        }
        super().__init__(STYLES[style], readers[style])

    def _hermes(self) -> Reading:
        while True:
            yield from self._until("<tool_call>")
            yield from self._json_calls((yield from self._skip()))
            yield from self._expect((yield from self._skip()) and "/tool_call>")
            self._raw = ""

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
            self._begin(name.strip(), given.strip())
            yield from self._value("{" if head.endswith("{") else (yield from self._skip()), True)

    def _deepseek(self) -> Reading:
        calls, call, sep, end, calls_end = self._form.markers
        while True:
            if (yield from self._until(calls, call, calls_end)) != call:
                self._raw = ""
                continue
            name = (yield from self._read_to(sep)).removesuffix(sep)
            char = yield from self._skip()
            if char != "{":  # the kind of the tool, which is always a function, was first
                name = yield from self._read_to("\n", start=char)
                yield from self._read_to("{")
            self._begin(name.strip())
            yield from self._value("{", True)
            yield from self._read_to(end)
            self._raw = ""

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
            self._begin(name)
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
            self._argue(f"{before}{json.dumps(key)}: {_as_json(value)}")
            before = ", "
        self._argue("{}" if before == "{" else "}")
        return ""

    def _python_value(self) -> Reading:
        text, depth, quote, escaped = "", 0, "", False
        while True:
            char = yield from self._char()
            if not quote and not depth and char in ",)":
                self._again = char
                return text
            text += char
            if quote:
                quote, escaped = ("" if char == quote and not escaped else quote), not escaped and char == "\\"
            elif char in "\"'":
                quote = char
            else:
                depth += (char in "{[(") - (char in "}])")


def parse_tool_calls(text: str, style: str) -> tuple[str, list[ToolCall]]:
    """The text of a whole answer without its calls, and the calls."""
    parser = ToolParser(style)
    said, names, arguments = "", list[Delta](), dict[int, str]()
    for delta in parser.feed(text) + parser.finish():
        if delta.kind == "text":
            said += delta.text
        elif delta.kind == "name":
            names.append(delta)
        else:
            arguments[delta.index] = arguments.get(delta.index, "") + delta.text
    return said, [ToolCall(each.id, each.text, arguments.get(each.index, "")) for each in names]


def _as_json(text: str) -> str:
    """A literal of Python, in which JSON's true, false and null may occur, as JSON."""

    class Words(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node

    return json.dumps(ast.literal_eval(Words().visit(ast.parse(text.strip(), mode="eval"))))
