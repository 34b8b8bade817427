"""Walks over syntax trees."""

import ast
from collections.abc import Iterator


def walk(*roots: ast.AST) -> Iterator[ast.AST]:
    """Every node below the roots, without the contexts of names; in no order, and faster than ast.walk."""
    pending = list(roots)
    while pending:
        node = pending.pop()
        yield node
        for name, value in vars(node).items():
            if isinstance(value, list):
                pending += [v for v in value if isinstance(v, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                pending.append(value)


def dotted(node: ast.expr) -> str:
    """The text of an expression, as ast.unparse gives it; faster for names and their attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it, but not of the functions and classes that it defines."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            pending += inner if isinstance(inner, list) else ()
