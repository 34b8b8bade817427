"""Edits of a script on libcst, asked for by positions of Python's own syntax tree; all else stays to the letter."""

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


def apply(source: str, edits: Edits, name: str) -> str:
    """The edited source; a script that libcst cannot read, or an edit that finds no place, is one sentence."""
    try:
        module = cst.parse_module(source)
        positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        editor = _Editor(edits, positions, module)
        changed = module.visit(editor)
    except cst.ParserSyntaxError as error:
        reason = error.message.splitlines()[0]
        raise UserError(
            f"{name} cannot be rewritten: libcst cannot read line {error.editor_line}: {reason}."
        ) from error
    except (cst.CSTValidationError, RecursionError) as error:
        raise UserError(f"{name} cannot be rewritten: {str(error).splitlines()[0]}.") from error
    if editor.done != edits.count():
        raise UserError(f"{name}: {edits.count() - editor.done} of {edits.count()} planned edits found no place.")
    return changed.code


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

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
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

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body = list(updated_node.body)
        config = self.module.config_for_parsing
        if self.edits.module_head:
            at = 1 if body and _is_docstring(body[0]) else 0
            while at < len(body) and _is_future(body[at]):
                at += 1
            body[at:at] = cst.parse_module(self.edits.module_head, config=config).body
        if self.edits.module_tail:
            body += cst.parse_module(self.edits.module_tail, config=config).body
        return updated_node.with_changes(body=body)


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


def _is_future(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    part = statement.body[0]
    return isinstance(part, cst.ImportFrom) and part.module is not None and part.module.value == "__future__"
