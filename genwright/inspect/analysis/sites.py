"""Where a script meets a project's interfaces."""

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from genwright.inspect.analysis.abstract_values import Local
from genwright.inspect.analysis.bind import Binding, Signature
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.manifest import Interface
from genwright.inspect.analysis.scopes import Scope
from genwright.inspect.analysis.syntax import Function

Definition = Function | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Site:
    """One call of an interface, or one construction of its object."""

    interface: Interface
    key: str
    call: ast.Call
    scope: str
    signature: Signature | None
    binding: Binding
    factory: str = ""
    on_object: bool = False
    home: str = ""
    note: str = ""
    # Where each interface lives that a callable such as `models[name]` or a partial may hold; None for a plain callee.
    holds: dict[str, str] | None = None

    @property
    def kind(self) -> str:
        return {"class": "construction", "method": "method", "function": "function"}[self.interface.kind]

    @property
    def run_name(self) -> str:
        """What `run` is given: on a named object the bare method, since the object tells its class."""
        if self.indirect:
            return "__call__"
        return self.interface.member if self.on_object else self.key

    @property
    def indirect(self) -> bool:
        """Whether the callee is a callable that holds the interface; the run tells what it is."""
        return self.holds is not None

    @property
    def receiver(self) -> str:
        if self.kind != "method":
            return ""
        return ast.unparse(self.held)

    @property
    def held(self) -> ast.expr:
        """What `on` is given: the object of a method, or the callable itself."""
        function = self.call.func
        by_attribute = isinstance(function, ast.Attribute) and self.interface.member != "__call__" and not self.indirect
        return function.value if by_attribute and isinstance(function, ast.Attribute) else function

    def to_dict(self) -> dict[str, Any]:
        entry = {
            "interface": self.interface.name,
            "kind": self.kind,
            "call": ast.unparse(self.call.func),
            "line": self.call.lineno,
            "in": self.scope or "<module>",
            "class": self.interface.owner if self.kind != "function" else "",
            "object": self.receiver,
            "factory": self.factory,
            "arguments": [str(a) for a in self.binding.arguments],
            "problem": self.binding.problem,
            "note": self.note,
        }
        return {k: v for k, v in entry.items() if v or k == "arguments"}


@dataclass(frozen=True)
class Unresolved:
    """A place that may concern an interface but cannot be routed, and why."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True)
class Location:
    """What a script has of a manifest's interfaces."""

    sites: list[Site]
    unresolved: list[Unresolved]
    defined: list[tuple[Interface, Definition]]
    flow: Flow
    classes: list[Interface]  # those whose objects the data flow tells apart

    @cached_property
    def crossing(self) -> set[ast.AST]:
        """The script's functions and classes that call an interface, themselves or through others of the script."""
        return self._reaching([s.call for s in self.sites])

    @cached_property
    def calling(self) -> set[ast.AST]:
        """Those of them that do more than make an interface's object."""
        return self._reaching([s.call for s in self.sites if s.kind != "construction"])

    def _reaching(self, pending: list[ast.Call]) -> set[ast.AST]:
        callers: dict[ast.AST, list[ast.Call]] = {}
        for call in (n for n in self.flow.nodes if isinstance(n, ast.Call)):
            for value in self.flow.values(call.func):
                if isinstance(value, Local):
                    callers.setdefault(value.node, []).append(call)
        found: set[ast.AST] = set()
        while pending:
            scope: Scope | None = self.flow.scope(pending.pop())
            while scope is not None and scope.node not in found:
                found.add(scope.node)
                pending += callers.get(scope.node, [])
                scope = scope.parent
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "sites": [s.to_dict() for s in self.sites],
            "unresolved": [vars(u) for u in self.unresolved],
            "defined": [i.name for i, _ in self.defined],
        }
