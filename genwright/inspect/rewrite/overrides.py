"""`[set]`: values of the scenario put over the script's own, by qualified name, whether the name exists or not."""

import ast
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.scenario import literal
from genwright.inspect.analysis.syntax import Function, called_name, defaults
from genwright.inspect.rewrite.edits import Edits

Container = ast.Module | Function | ast.ClassDef


def plan_overrides(tree: ast.Module, overrides: dict[str, Any], edits: Edits) -> dict[str, str]:
    """Add the edits; returns what each name was before, as source text ("" when it was missing)."""
    before: dict[str, str] = {}
    for name, value in overrides.items():
        before[name] = _Override(tree, edits, name, literal(value)).plan()
    return before


class _Override:
    def __init__(self, tree: ast.Module, edits: Edits, name: str, text: str) -> None:
        self.tree, self.edits, self.name, self.text = tree, edits, name, text

    def plan(self) -> str:
        *path, last = self.name.split(".")
        container: Container = self.tree
        for index, part in enumerate(path):
            inner = next((n for n in _own(container) if isinstance(n, Container) and _named(n, part)), None)
            if inner is not None:
                assert isinstance(inner, Container)
                container = inner
            elif index == len(path) - 1 and _assignments(container, part):
                return self._object_attribute(container, part, last)
            else:
                have = sorted(str(getattr(n, "name", "")) for n in _own(container) if isinstance(n, Container))
                raise UserError(
                    f"[set] {self.name}: {getattr(container, 'name', 'the script')} has no {part!r}; "
                    f"it has {', '.join(have) or 'no functions or classes'}."
                )
        if isinstance(container, Function):
            return self._in_function(container, last)
        if isinstance(container, ast.ClassDef):
            return self._in_class(container, last)
        return self._in_module(last)

    def _assigned(self, assignment: ast.Assign | ast.AnnAssign) -> str:
        if assignment.value is None:
            assert isinstance(assignment, ast.AnnAssign)
            self.edits.insert(self.edits.source.end(assignment), f" = {self.text}")
            return ""
        self.edits.replace(assignment.value, self.text)
        return ast.unparse(assignment.value)

    def _object_attribute(self, container: Container, variable: str, attribute: str) -> str:
        """`main.args.use_fp16`: an attribute of a variable, set right after the variable is."""
        for node in _own(container):
            if isinstance(node, ast.Assign) and any(ast.unparse(t) == f"{variable}.{attribute}" for t in node.targets):
                return self._assigned(node)
        first = _assignments(container, variable)[0]
        self.edits.after(first, f"{variable}.{attribute} = {self.text}")
        return ""

    def _in_function(self, function: Function, name: str) -> str:
        arguments = function.args
        plain = [*arguments.posonlyargs, *arguments.args]
        known = {parameter.arg: default for parameter, default in defaults(arguments)}
        parameter = next((a for a in [*plain, *arguments.kwonlyargs] if a.arg == name), None)
        if parameter is None:
            assigned = _assignments(function, name)
            if assigned:
                return self._assigned(assigned[0])
            self.edits.head(function, f"{name} = {self.text}")
            return ""
        if name in known:
            self.edits.replace(known[name], self.text)
        # A caller that passes the parameter would win over its default.
        if name not in known or self._is_passed(function, name, plain):
            self.edits.head(function, f"{name} = {self.text}")
        return ast.unparse(known[name]) if name in known else ""

    def _is_passed(self, function: Function, name: str, plain: list[ast.arg]) -> bool:
        index = next((i for i, a in enumerate(plain) if a.arg == name), len(plain) + 1)
        for call in ast.walk(self.tree):
            if not isinstance(call, ast.Call):
                continue
            if called_name(call) not in (function.name, "Fire", "run"):
                continue
            starred = any(isinstance(a, ast.Starred) for a in call.args)
            if starred or len(call.args) > index or any(k.arg in (name, None) for k in call.keywords):
                return True
        # Decorated functions are called by others (click, typer, fire).
        return bool(function.decorator_list)

    def _in_class(self, node: ast.ClassDef, name: str) -> str:
        for method in node.body:
            if isinstance(method, Function) and method.name == "__init__" and method.args.args:
                itself = method.args.args[0].arg
                for statement in _own(method):
                    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == f"{itself}.{name}":
                        return self._assigned(statement)
        assigned = _assignments(node, name)
        if assigned:
            return self._assigned(assigned[0])
        self.edits.after(node.body[-1], f"{name} = {self.text}")
        return ""

    def _in_module(self, name: str) -> str:
        assigned = _assignments(self.tree, name)
        if assigned:
            return self._assigned(assigned[0])
        self.edits.module_head += f"{name} = {self.text}\n"
        return ""


def _own(container: Container) -> list[ast.AST]:
    """The nodes of a scope itself, not of the functions and classes inside it."""
    found: list[ast.AST] = []
    pending: list[ast.AST] = list(container.body)
    while pending:
        node = pending.pop(0)
        found.append(node)
        if not isinstance(node, Container | ast.Lambda):
            pending = [*ast.iter_child_nodes(node), *pending]
    return found


def _named(node: ast.AST, name: str) -> bool:
    return getattr(node, "name", None) == name


def _assignments(container: Container, name: str) -> list[ast.Assign | ast.AnnAssign]:
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in _own(container):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            found.append(node)
    return found
