"""CallReader: what the readers of all styles of tool calls share, one character after the other."""

import json
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from genwright.text.tool_calls.styles import Style

_SPACE = " \t\r\n"
_AFTER_WORD = _SPACE + ",]}"  # what ends a number or a word in JSON
Reading = Generator[None, str, str]  # is sent one character after the other, and returns what it has read


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: of its text, or the name or a piece of the arguments of call number `index`."""

    kind: Literal["text", "name", "arguments"]
    index: int
    id: str
    text: str


class NoCall(Exception):
    """The text is not a call after all."""


class CallReader:
    """Sends each character to a reader, which adds what it finds to the deltas."""

    def __init__(self, form: Style, reader: Callable[[], Reading]) -> None:
        self._form, self._new = form, reader
        self._out: list[Delta] = []
        self._raw = ""  # read, and not known yet to be text or a part of a call
        self._space = ""  # at the end of the text so far; dropped before a call
        self._pushed_back = ""  # a character that was read and must be read again
        self._calls, self._id, self._in_text = 0, "", True
        # Long texts are kept in pieces, because adding each character to one text would copy it each time.
        self._fed, self._read = list[str](), 0  # all text, and how many characters of it have been read
        self._call_began = 0  # where the last call began in it
        self._reading_call, self._arguments = False, list[str]()  # of the last call
        self._start(reader)

    def feed(self, text: str) -> list[Delta]:
        """Add text; returns what is known now."""
        self._fed.append(text)
        for char in text:
            self._raw += char
            self._read += 1
            try:
                self._reader.send(char)
            except (NoCall, ValueError, SyntaxError, RecursionError, MemoryError):  # those of json and ast
                self._add_text(self._raw)
                self._start(self._new if self._form.trigger else self._rest)
        return self._take_deltas()

    def finish(self) -> list[Delta]:
        """The rest, when the text has ended."""
        self._add_text("" if self.cut else self._raw)
        if not self._calls and self._space:
            self._out.append(Delta("text", 0, "", self._space))
        return self._take_deltas()

    @property
    def cut(self) -> str:
        """The text of the last call, with the spaces before it, if its arguments are not whole; else empty."""
        if not self._reading_call:
            return ""
        try:
            json.loads("".join(self._arguments))
        except RecursionError:  # of whole ones, too
            return ""
        except ValueError:
            return "".join(self._fed)[self._call_began :]
        return ""

    def _start(self, reader: Callable[[], Reading]) -> None:
        self._raw = self._pushed_back = ""
        self._reader = reader()
        next(self._reader)

    def _take_deltas(self) -> list[Delta]:
        """The new deltas; neighbours of the same kind are joined."""
        joined: list[Delta] = []
        for delta in self._out:
            last = joined[-1] if joined else None
            if last is not None and last.kind == delta.kind != "name" and last.index == delta.index:
                joined[-1] = Delta(delta.kind, delta.index, delta.id, last.text + delta.text)
            else:
                joined.append(delta)
        self._out = []
        return joined

    def _add_text(self, text: str) -> None:
        """Add text of the answer."""
        text, self._raw = self._space + text, ""
        kept = text.rstrip(_SPACE)
        self._space = text[len(kept) :]
        if kept:
            self._out.append(Delta("text", 0, "", kept if self._in_text else kept.lstrip(_SPACE)))
            self._in_text, self._reading_call = True, False

    def _begin_call(self, name: object, given: object = None) -> None:
        """Begin a call."""
        if not isinstance(name, str) or not name:
            raise NoCall
        self._id = given if isinstance(given, str) and given else f"call_{secrets.token_hex(12)}"
        self._out.append(Delta("name", self._calls, self._id, name))
        self._call_began = self._read - len(self._raw) - len(self._space)
        self._reading_call, self._arguments = True, []
        self._calls += 1
        self._raw = self._space = ""
        self._in_text = False

    def _add_arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        self._out.append(Delta("arguments", self._calls - 1, self._id, text))
        self._arguments.append(text)
        self._raw = ""

    def _char(self) -> Reading:
        if self._pushed_back:
            char, self._pushed_back = self._pushed_back, ""
            return char
        return (yield)

    def _skip(self, others: str = "") -> Reading:
        """The next character that is neither a space nor one of the others."""
        while (char := (yield from self._char())) in _SPACE + others:
            pass
        return char

    def _expect(self, text: str, start: str = "") -> Reading:
        """This text, which begins with what has been read of it."""
        while start != text:
            if not text.startswith(start):
                raise NoCall
            start += yield from self._char()
        return text

    def _close(self, tag: str) -> Reading:
        """The end of a call, after spaces; if the answer is cut off inside it, it is not text of the answer."""
        read = ""
        while not read.endswith(tag):
            read, self._raw = read + (yield from self._char()), ""
            if not tag.startswith(read.lstrip(_SPACE)):
                self._raw = read
                raise NoCall
        return read

    def _read_to(self, *ends: str, start: str = "") -> Reading:
        """What comes before one of these texts, and the text."""
        while not start.endswith(ends):
            start += yield from self._char()
        return start

    def _until(self, *markers: str) -> Reading:
        """Take all before one of these markers as text; returns the marker."""
        while True:
            yield from self._char()
            if found := next((each for each in markers if self._raw.endswith(each)), None):
                self._add_text(self._raw.removesuffix(found))
                self._raw = found
                return found
            raw, longest = self._raw, min(len(self._raw), max(map(len, markers)) - 1)
            kept = next((n for n in range(longest, 0, -1) if any(m.startswith(raw[-n:]) for m in markers)), 0)
            self._add_text(raw[: len(raw) - kept])
            self._raw = raw[len(raw) - kept :]

    def _rest(self) -> Reading:
        """All that follows is text."""
        while True:
            self._add_text((yield from self._char()))

    def _value(self, char: str, as_arguments: bool = False) -> Reading:
        """A JSON value that begins with this character; `as_arguments` adds it to the call while it is read."""
        text, depth, quoted, escaped = "", 0, False, False
        word = char not in '"{['
        while True:
            text += char
            if as_arguments:
                self._add_arguments(char)
            if quoted:
                quoted, escaped = escaped or char != '"', not escaped and char == "\\"
            elif char == '"':
                quoted = True
            else:
                depth += (char in "{[") - (char in "}]")
            if not word and not quoted and not depth:
                return text
            char = yield from self._char()
            if word and char in _AFTER_WORD:
                self._pushed_back = char
                return text

    def _json_call(self) -> Reading:
        """A call as a JSON object, after its first brace."""
        name = given = arguments = None
        complete = False  # whether the call's name and arguments have been added
        while (char := (yield from self._skip(","))) != "}":
            key = json.loads((yield from self._value(char)))
            if (yield from self._skip()) != ":":
                raise NoCall
            char = yield from self._skip()
            if key == "function" and char == "{":  # as OpenAI's API has it
                yield from self._json_call()
                complete = True
            elif key in ("arguments", "parameters"):
                if name is not None and char == "{":
                    self._begin_call(name, given)
                    complete = bool((yield from self._value(char, True)))
                else:
                    arguments = yield from self._value(char)
            else:
                value = json.loads((yield from self._value(char)))
                name, given = (value if key in ("name", "function") else name), (value if key == "id" else given)
        if not complete:
            if arguments is None and not self._form.trigger:  # then it is some other JSON
                raise NoCall
            self._begin_call(name, given)
            arguments = arguments or "{}"
            self._add_arguments(json.loads(arguments) if arguments.startswith('"') else arguments)
        self._raw = ""
        return ""

    def _json_calls(self, char: str) -> Reading:
        """A call, or a list of calls."""
        if char == "[":
            before = self._calls
            while (char := (yield from self._skip(","))) == "{":
                yield from self._json_call()
            if char != "]" or self._calls == before:
                raise NoCall
            self._raw = ""
        elif char == "{":
            yield from self._json_call()
        else:
            raise NoCall
        return ""
