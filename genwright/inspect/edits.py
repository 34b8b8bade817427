"""Edits of a script on libcst, asked for by positions of Python's own syntax tree; all else stays to the letter."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from genwright.errors import UserError

Span = tuple[int, int, int, int]
Place = tuple[int, int]
Change = Callable[[cst.BaseExpression], cst.BaseExpression]


class Lines:
    """Positions of a source in lines and characters, as libcst counts; ast counts columns in UTF-8 bytes."""

    def __init__(self, source: str) -> None:
        self._lines = re.split(r"\r\n|\r|\n", source)

    def column(self, line: int, offset: int) -> int:
        text = self._lines[line - 1]
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))

    def start(self, node: Any) -> Place:
        return node.lineno, self.column(node.lineno, node.col_offset)

    def span(self, node: Any) -> Span:
        return *self.start(node), node.end_lineno, self.column(node.end_lineno, node.end_col_offset)


@dataclass
class Edits:
    """What to change: expressions by span, assigned values and parameter defaults by place, statements to insert.

    Inserted statements are source text: at the `heads` of functions, at the `tails` of classes, `after` a definition or
    a simple statement (all by the place where it starts), and at the head and tail of the module.
    """

    expressions: dict[Span, Change] = field(default_factory=dict)
    values: dict[Place, str] = field(default_factory=dict)
    defaults: dict[Place, str] = field(default_factory=dict)
    heads: dict[Place, list[str]] = field(default_factory=dict)
    tails: dict[Place, list[str]] = field(default_factory=dict)
    after: dict[Place, list[str]] = field(default_factory=dict)
    module_head: str = ""
    module_tail: str = ""

    def count(self) -> int:
        inserted = [*self.heads.values(), *self.tails.values(), *self.after.values()]
        return len(self.expressions) + len(self.values) + len(self.defaults) + sum(map(len, inserted))

    def within(self, first: int, last: int) -> "Edits":
        """The edits of some lines, counted from the first of them; the module's head and tail are no line's."""
        back = first - 1

        def places(table: dict[Place, Any]) -> dict[Place, Any]:
            return {(line - back, column): v for (line, column), v in table.items() if first <= line <= last}

        return Edits(
            {(a - back, b, c - back, d): v for (a, b, c, d), v in self.expressions.items() if first <= a <= last},
            places(self.values),
            places(self.defaults),
            places(self.heads),
            places(self.tails),
            places(self.after),
        )


def apply(source: str, edits: Edits, name: str) -> str:
    """The edited source; a script that libcst cannot read, or an edit that finds no place, is one sentence."""
    # Only top-level statements with an edit go through libcst, which takes its time; lines end as the script ends them.
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)
    newline = next((e for e in ("\r\n", "\n", "\r") if e in source), "\n")
    statements = _ranges(ast.parse(source))
    done = 0
    for first, last in statements:
        own = edits.within(first, last)
        if own.count():
            lines[first - 1 : last] = ["".join(lines[first - 1 : last]), *[""] * (last - first)]
            lines[first - 1], count = _edited(lines[first - 1], own, name, first)
            done += count
    if done != edits.count():
        raise UserError(f"{name}: {edits.count() - done} of {edits.count()} planned edits found no place.")
    if edits.module_head:
        at = _head(ast.parse(source), statements)
        if at and not lines[at - 1].endswith(("\n", "\r")) and "".join(lines[:at]):
            lines[at - 1] += newline
        lines.insert(at, edits.module_head.replace("\n", newline))
    text = "".join(lines)
    if edits.module_tail:
        text += ("" if text.endswith(("\n", "\r")) else newline) + edits.module_tail.replace("\n", newline)
    return text


def _ranges(tree: ast.Module) -> list[tuple[int, int]]:
    """The first and last line of each top-level statement, decorators included; those that share a line go together."""
    ranges: list[tuple[int, int]] = []
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = node.end_lineno or first
        if ranges and first <= ranges[-1][1]:
            first, last = ranges[-1][0], max(last, ranges.pop()[1])
        ranges.append((first, last))
    return ranges


def _head(tree: ast.Module, ranges: list[tuple[int, int]]) -> int:
    """How many lines stand in front of the module's head: its docstring and imports from __future__, or comments."""
    kept = 1 if ast.get_docstring(tree, clean=False) is not None else 0
    while kept < len(tree.body) and getattr(tree.body[kept], "module", None) == "__future__":
        kept += 1
    if not kept:
        return ranges[0][0] - 1 if ranges else 0
    line = tree.body[kept - 1].lineno
    return next(last for first, last in ranges if first <= line <= last)


def _edited(text: str, edits: Edits, name: str, first: int) -> tuple[str, int]:
    """One statement's text after its edits, and how many of them found their place."""
    try:
        module = cst.parse_module(text)
        editor = _Editor(edits, MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider), module)
        return module.visit(editor).code, editor.done
    except cst.ParserSyntaxError as error:
        line, reason = first - 1 + error.editor_line, error.message.splitlines()[0]
        raise UserError(f"{name} cannot be rewritten: libcst cannot read line {line}: {reason}.") from error
    except (cst.CSTValidationError, RecursionError) as error:
        raise UserError(f"{name} cannot be rewritten: {str(error).splitlines()[0]}.") from error


def expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: Edits, positions: Any, module: cst.Module) -> None:
        super().__init__()
        self.edits, self.positions, self.module = edits, positions, module
        self.done = 0

    def _start(self, node: cst.CSTNode) -> Place:
        start = self.positions[node].start
        return start.line, start.column

    def _statements(self, texts: Sequence[str]) -> list[cst.BaseStatement]:
        self.done += len(texts)
        config = self.module.config_for_parsing
        return [cst.parse_statement(text, config=config) for text in texts]

    def _expression(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        where = self.positions[original]
        span = (where.start.line, where.start.column, where.end.line, where.end.column)
        change = self.edits.expressions.get(span)
        if change is None:
            return updated
        self.done += 1
        return change(updated)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        return self._expression(original_node, updated_node)

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.BaseExpression:
        return self._expression(original_node, updated_node)

    def leave_ConcatenatedString(
        self, original_node: cst.ConcatenatedString, updated_node: cst.ConcatenatedString
    ) -> cst.BaseExpression:
        return self._expression(original_node, updated_node)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        text = self.edits.values.get(self._start(original_node))
        if text is None:
            return updated_node
        self.done += 1
        return updated_node.with_changes(value=expression(text))

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        text = self.edits.values.get(self._start(original_node))
        if text is None:
            return updated_node
        self.done += 1
        space = cst.SimpleWhitespace(" ")
        equal = updated_node.equal
        if isinstance(equal, cst.MaybeSentinel):
            equal = cst.AssignEqual(whitespace_before=space, whitespace_after=space)
        return updated_node.with_changes(value=expression(text), equal=equal)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        text = self.edits.defaults.get(self._start(original_node.name))
        if text is None:
            return updated_node
        self.done += 1
        return updated_node.with_changes(default=expression(text))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        place = self._def_place(original_node)
        if place in self.edits.heads:
            new = self._statements(self.edits.heads[place])
            body = _block(updated_node.body)
            at = 1 if _is_docstring(body.body[0]) else 0
            body = body.with_changes(body=[*body.body[:at], *new, *body.body[at:]])
            updated_node = updated_node.with_changes(body=body)
        return self._followed(place, updated_node)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        place = self._def_place(original_node)
        if place in self.edits.tails:
            new = self._statements(self.edits.tails[place])
            body = _block(updated_node.body)
            updated_node = updated_node.with_changes(body=body.with_changes(body=[*body.body, *new]))
        return self._followed(place, updated_node)

    def _def_place(self, node: cst.FunctionDef | cst.ClassDef) -> Place:
        """Where `async`, `def` or `class` stands: ast says so, while libcst begins a definition at its decorators."""
        if not node.decorators:
            return self._start(node)
        keyword = "class " if isinstance(node, cst.ClassDef) else "def "
        line, column = self._start(node.name)
        if isinstance(node, cst.FunctionDef) and node.asynchronous:
            keyword = "async def "
        return line, column - len(keyword)

    def _followed(self, place: Place, node: cst.BaseStatement) -> Any:
        if place not in self.edits.after:
            return node
        return cst.FlattenSentinel([node, *self._statements(self.edits.after[place])])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        new = [t for part in original_node.body for t in self.edits.after.get(self._start(part), [])]
        return cst.FlattenSentinel([updated_node, *self._statements(new)]) if new else updated_node

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        new = [t for part in original_node.body for t in self.edits.after.get(self._start(part), [])]
        if not new:
            return updated_node
        block = _block(updated_node)
        return block.with_changes(body=[*block.body, *self._statements(new)])


def _block(body: cst.BaseSuite) -> cst.IndentedBlock:
    """A body as an indented block; `class A: pass` becomes one of several lines."""
    if isinstance(body, cst.IndentedBlock):
        return body
    assert isinstance(body, cst.SimpleStatementSuite)
    line = cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)
    return cst.IndentedBlock([line])


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return False
    value = statement.body[0].value
    return isinstance(value, cst.ConcatenatedString) or (
        isinstance(value, cst.SimpleString) and "b" not in value.prefix.lower()
    )
