"""Interfaces that a script hands on as values: calls made through them are not seen."""

import ast
from collections.abc import Callable

from genwright.inspect.analysis.abstract_values import Instance, Ref
from genwright.inspect.analysis.expressions import WRAPPERS
from genwright.inspect.analysis.manifest import Interface
from genwright.inspect.analysis.match import Matcher
from genwright.inspect.analysis.sites import Unresolved


class Escapes:
    """Looks through a script; `held` are the interfaces that are called through containers and partials."""

    def __init__(self, matcher: Matcher, held: set[str], is_internal: Callable[[ast.AST], bool]) -> None:
        self.matcher, self.flow = matcher, matcher.flow
        self.held, self.is_internal = held, is_internal

    def unresolved(self) -> list[Unresolved]:
        found = []
        for node in self.flow.nodes:
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            parent = self.flow.scopes.parent[node]
            if isinstance(parent, ast.Attribute | ast.Subscript) or (
                isinstance(parent, ast.Call) and parent.func is node
            ):
                continue
            if self._is_parameter(node) or self._rebinds(node, parent):
                continue
            wrapped = isinstance(parent, ast.Call) and any(
                isinstance(v, Ref) and v.dotted in WRAPPERS for v in self.flow.values(parent.func)
            )
            matches = [self.matcher.match(v) for v in self.flow.values(node) if not isinstance(v, Instance)]
            crossing = [m for m in matches if m and m[0].kind != "class"]
            # `gen = generate` only names the interface anew; the call through `gen` is found.
            if wrapped or not crossing or isinstance(parent, ast.Assign) or self.is_internal(node):
                continue
            if not self._is_held(node, crossing[0][0]):
                reason = f"{crossing[0][0].name} is handed on as a value; calls made through it are not recorded"
                found.append(Unresolved(node.lineno, ast.unparse(node), reason))
        return found

    def _is_held(self, node: ast.AST, interface: Interface) -> bool:
        """Whether an interface is put into a container or a partial that a name holds, and is called through it."""
        if interface.name not in self.held:
            return False
        for outer in self.flow.scopes.around(node):
            if isinstance(outer, ast.Assign | ast.AnnAssign):
                return True
            is_partial = isinstance(outer, ast.Call) and Ref("functools.partial") in self.flow.values(outer.func)
            if not is_partial and not isinstance(outer, ast.Dict | ast.List | ast.Tuple):
                return False
        return False

    def _is_parameter(self, node: ast.AST) -> bool:
        """Whether a name is a function's parameter: who handed it in has been told already."""
        home = self.flow.scope(node).home(node.id) if isinstance(node, ast.Name) else None
        return home is not None and getattr(node, "id", "") in home.parameters

    def _rebinds(self, node: ast.AST, parent: ast.AST) -> bool:
        """`generate = wrap(generate)`: the calls by that name are still found."""
        outer = self.flow.scopes.parent.get(parent)
        if not isinstance(node, ast.Name) or not isinstance(parent, ast.Call) or not isinstance(outer, ast.Assign):
            return False
        return any(isinstance(t, ast.Name) and t.id == node.id for t in outer.targets)
