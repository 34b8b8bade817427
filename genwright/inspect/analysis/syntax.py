"""Questions about syntax trees that several modules ask."""

import ast
from collections.abc import Iterator
from itertools import takewhile

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def called_name(call: ast.Call) -> str:
    """The last name of what is called, `generate` of `model.generate(...)`; "" where it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def arguments(call: ast.Call) -> list[ast.expr]:
    """The expressions that a call passes, by position and by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def passed(call: ast.Call, function: Function | ast.Lambda, bound: bool) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that a call gives, with their expressions; of positional arguments those before a star.

    The first parameter of a `bound` function is not given by the call.
    """
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]][bound:]
    yield from zip(names, takewhile(lambda a: not isinstance(a, ast.Starred), call.args), strict=False)
    yield from ((k.arg, k.value) for k in call.keywords if k.arg is not None)


def defaults(parameters: ast.arguments) -> list[tuple[ast.arg, ast.expr]]:
    """The parameters that have a default, with it."""
    plain = [*parameters.posonlyargs, *parameters.args]
    found = zip(plain[len(plain) - len(parameters.defaults) :], parameters.defaults, strict=True)
    return [*found, *((a, d) for a, d in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if d)]


def is_main_guard(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def imported_module(node: ast.ImportFrom, package: str) -> str:
    """The absolute name of the module that `from ... import` means in a file of a package."""
    parts = package.split(".") if node.level and package else []
    parts = parts[: len(parts) - max(node.level - 1, 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it, but not of the functions and classes that it defines."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, Function | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            pending += inner if isinstance(inner, list) else ()
