"""Which names each function, class and module of a script binds, and where a name is looked up."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from genwright.inspect.analysis.syntax import Function

Node = ast.Module | Function | ast.Lambda | ast.ClassDef


@dataclass(eq=False)
class Scope:
    """A scope of the script; comprehensions count to the scope that they stand in."""

    node: Node
    parent: "Scope | None"
    bound: set[str] = field(default_factory=set)
    declared: dict[str, str] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def name(self) -> str:
        own = getattr(self.node, "name", "<lambda>")
        if self.parent is None:
            return ""
        return f"{self.parent.name}.{own}" if self.parent.name else own

    def home(self, name: str) -> "Scope | None":
        """The scope whose variable a name means here, as Python looks it up; None when nothing binds it."""
        module = self
        while module.parent is not None:
            module = module.parent
        if self.declared.get(name) == "global":
            return module
        if name in self.bound and name not in self.declared:
            return self
        scope = self.parent
        while scope is not None:
            if name in scope.bound and (not scope.is_class or scope is self):
                return module if scope.declared.get(name) == "global" else scope
            scope = scope.parent
        return None


class Scopes(ast.NodeVisitor):
    """Every scope of a script, and the scope, parent and loop that each node stands in."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.of_node: dict[ast.AST, Scope] = {tree: self.module}
        self.opened_by: dict[ast.AST, Scope] = {tree: self.module}
        self.parent: dict[ast.AST, ast.AST] = {}
        self.star_imports: list[ast.ImportFrom] = []
        self._scope = self.module
        for child in tree.body:
            self._enter(child, tree)

    def _enter(self, node: ast.AST, parent: ast.AST) -> None:
        self.parent[node] = parent
        self.of_node[node] = self._scope
        self.visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._enter(child, node)

    def _open(self, node: Node, outside: list[ast.AST], inside: list[ast.AST]) -> None:
        """Visit what the surrounding scope evaluates (decorators, defaults, bases), then the body in a new scope."""
        for child in outside:
            self._enter(child, node)
        surrounding, self._scope = self._scope, Scope(node, self._scope)
        self.opened_by[node] = self._scope
        for child in inside:
            self._enter(child, node)
        self._scope = surrounding

    def _function(self, node: Function) -> None:
        self._scope.bound.add(node.name)
        arguments = node.args
        outside = [*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)]
        self._open(node, [*outside, *filter(None, [node.returns])], [*_arguments(arguments), *node.body])

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        arguments = node.args
        defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        self._open(node, list(defaults), [*_arguments(arguments), node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bound.add(node.name)
        self._open(node, [*node.decorator_list, *node.bases, *node.keywords], list(node.body))

    def visit_arg(self, node: ast.arg) -> None:
        self._scope.bound.add(node.arg)
        self._scope.parameters.add(node.arg)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._scope.bound.add(node.id)

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.declared |= dict.fromkeys(node.names, "global")
        self.module.bound |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.declared |= dict.fromkeys(node.names, "nonlocal")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*" and isinstance(node, ast.ImportFrom):
                self.star_imports.append(node)
            else:
                self._scope.bound.add(alias.asname or alias.name.partition(".")[0])

    visit_Import = _import
    visit_ImportFrom = _import

    def _captured(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._scope.bound.add(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = _captured
    visit_MatchAs = _captured
    visit_MatchStar = _captured

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._scope.bound.add(node.rest)
        self.generic_visit(node)

    def in_loop(self, node: ast.AST) -> bool:
        """Whether a node runs repeatedly within its own scope."""
        scope = self.of_node[node]
        while node in self.parent:
            parent = self.parent[node]
            if self.of_node[parent] is not scope or parent is scope.node:
                return False
            if isinstance(parent, ast.For | ast.AsyncFor) and node not in (parent.iter, *parent.orelse):
                return True
            if isinstance(parent, ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                return True
            node = parent
        return False

    def in_f_string(self, node: ast.AST) -> bool:
        return any(isinstance(outer, ast.JoinedStr) for outer in self.around(node))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is a part of."""
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node

    def inside(self, node: ast.AST, container: ast.AST) -> bool:
        return any(outer is container for outer in self.around(node))


def _arguments(arguments: ast.arguments) -> list[ast.AST]:
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]
