"""Edits of a script's text by the positions of its syntax tree; all else stays to the letter."""

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.syntax import Function

_LINE_END = re.compile(r"\r\n|\r|\n")
# What Python skips between two tokens inside brackets.
_BLANK = re.compile(r"(?:[ \t\f\r\n]|\\\r?\n|#[^\r\n]*)*")

Span = tuple[int, int]
Piece = tuple[int, int, str]


class Source:
    """A script's text, with the character offsets of its syntax tree's nodes; ast counts columns in UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(m.end() for m in _LINE_END.finditer(text))]
        self._ascii = text.isascii()
        self.newline = m.group() if (m := _LINE_END.search(text)) else "\n"

    def offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        if self._ascii:
            return start + column
        held = self.text[start : self._starts[line] if line < len(self._starts) else len(self.text)]
        return start + (column if held.isascii() else len(held.encode()[:column].decode(errors="replace")))

    def start(self, node: Any) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: Any) -> int:
        return self.offset(node.end_lineno, node.end_col_offset)

    def span(self, node: Any) -> Span:
        return self.start(node), self.end(node)

    def line_start(self, at: int) -> int:
        return self._starts[bisect_right(self._starts, at) - 1]

    def line_end(self, at: int) -> int:
        """The offset where the line of an offset ends, before its line break."""
        match = _LINE_END.search(self.text, at)
        return match.start() if match else len(self.text)

    def skip(self, at: int) -> int:
        """The next offset that is neither blank nor a comment."""
        match = _BLANK.match(self.text, at)
        return match.end() if match else at

    def opening(self, call: ast.Call) -> int:
        """The offset of a call's own opening bracket."""
        at = self.skip(self.end(call.func))
        while self.text[at : at + 1] == ")":
            at = self.skip(at + 1)
        return at

    def past(self, node: Any, limit: int) -> int:
        """Where an expression ends, with the brackets around it; `limit` is where those of its surroundings close."""
        at = self.end(node)
        while (bracket := self.skip(at)) < limit and self.text[bracket : bracket + 1] == ")":
            at = bracket + 1
        return at


@dataclass
class Edits:
    """What to change in a source: pieces by offset, and the head and tail of the module."""

    source: Source
    pieces: list[Piece] = field(default_factory=list)
    module_head: str = ""
    module_tail: str = ""

    def replace(self, node: ast.AST, text: str) -> None:
        self.pieces.append((*self.source.span(node), text))

    def insert(self, at: int, text: str) -> None:
        self.pieces.append((at, at, text))

    def before(self, statement: ast.stmt, text: str) -> None:
        """Put a simple statement in front of another one of the same block."""
        source = self.source
        first = min([statement, *getattr(statement, "decorator_list", [])], key=lambda n: (n.lineno, n.col_offset))
        indent, at = self._indent(source.start(first))
        self.insert(at, f"{text}; " if indent is None else f"{text}{source.newline}{indent}")

    def after(self, statement: ast.stmt, text: str) -> None:
        """Put a simple statement behind another one in the same block."""
        source = self.source
        first = min([statement, *getattr(statement, "decorator_list", [])], key=lambda n: (n.lineno, n.col_offset))
        indent, _ = self._indent(source.start(first))
        end = source.end(statement)
        rest = source.text[end : source.line_end(end)].strip()
        compound = isinstance(getattr(statement, "body", None), list)
        if indent is not None and (compound or not rest or rest.startswith("#")):
            self.insert(source.line_end(end), f"{source.newline}{indent}{text}")
        else:
            self.insert(end, f"; {text}")

    def head(self, function: Function, text: str) -> None:
        """Put a simple statement at the start of a function, after its docstring."""
        body = function.body
        at = 1 if ast.get_docstring(function, clean=False) is not None else 0
        if at < len(body):
            self.before(body[at], text)
        else:
            self.after(body[-1], text)

    def _indent(self, at: int) -> tuple[str | None, int]:
        """The indentation of a statement that begins its line, else None; and where its text begins."""
        start = self.source.line_start(at)
        lead = self.source.text[start:at]
        blank = lead.rstrip("@ \t\f")
        return (None, at) if blank else (lead.partition("@")[0], start + len(lead.partition("@")[0]))


def apply(edits: Edits, tree: ast.Module, name: str) -> str:
    """The edited text; what stands inside a replaced piece goes with it."""
    text = "".join(splice(edits.source.text, edits.pieces, 0, len(edits.source.text), name))
    newline = edits.source.newline
    if edits.module_head:
        # No edit moves what stands in front of the module's head: docstring, imports from __future__, comments.
        at = _head(tree, edits.source)
        front = "".join(splice(edits.source.text, [p for p in edits.pieces if p[0] < at], 0, at, name))
        broken = newline if front and not front.endswith(("\n", "\r")) else ""
        text = front + broken + edits.module_head.replace("\n", newline) + text[len(front) :]
    if edits.module_tail:
        text += ("" if text.endswith(("\n", "\r")) else newline) + edits.module_tail.replace("\n", newline)
    return text


def splice(text: str, pieces: list[Piece], start: int, end: int, name: str) -> list[str]:
    """The parts of a text between two offsets, with pieces replaced; those inside a replaced one are left out."""
    parts: list[str] = []
    done = start
    for first, last, new in sorted(pieces, key=lambda p: p[:2]):
        if first < done:
            if last > done:
                raise UserError(f"{name}: two planned edits overlap.")
            continue
        parts += [text[done:first], new]
        done = last
    return [*parts, text[done:end]]


def _head(tree: ast.Module, source: Source) -> int:
    """Where the module's head goes: behind its docstring and imports from __future__, or the comments in front."""
    kept = 1 if ast.get_docstring(tree, clean=False) is not None else 0
    while kept < len(tree.body) and getattr(tree.body[kept], "module", None) == "__future__":
        kept += 1
    if not kept:
        if not tree.body:
            return 0
        first = tree.body[0]
        line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        return source.offset(line, 0)
    # Statements that share a line, or the lines of another, stay together.
    last = tree.body[kept - 1].end_lineno or 0
    for node in tree.body[kept:]:
        if node.lineno <= last:
            last = max(last, node.end_lineno or 0)
    at = source.line_end(source.offset(last, 0))
    match = _LINE_END.match(source.text, at)
    return match.end() if match else at
