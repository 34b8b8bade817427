"""The statements of a script that decide the arguments of one call: a backward program slice.

A statement is kept if it binds or may change a variable that a kept statement reads, or if it decides whether a kept
statement runs: the `if`, loop, `with` or `try` around it, and the calls of the function that it stands in. The analysis
ignores the order of statements, except that it leaves out those that cannot run before the call.
"""

import ast
from collections.abc import Iterable, Iterator

from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.effects import ScriptEffects, Variable, head
from genwright.inspect.analysis.scopes import Scope
from genwright.inspect.analysis.syntax import Function, statements

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FRAMEWORK_METHODS = ("forward",)  # called by a library's __call__


def backward_slice(flow: Flow, target: ast.Call, recorded: dict[ast.Call, bool]) -> set[ast.stmt]:
    """The statements to keep; all of them where the calls that lead to the target cannot be told.

    `recorded` are the calls whose result is known: True for those that still evaluate their arguments.
    """
    try:
        return _Slicer(flow, target, recorded).kept
    except _UnknownCallersError:
        return {n for n in flow.nodes if isinstance(n, ast.stmt)}


class _UnknownCallersError(Exception):
    pass


class _Slicer:
    def __init__(self, flow: Flow, target: ast.Call, recorded: dict[ast.Call, bool]) -> None:
        self.flow, self.scopes = flow, flow.scopes
        self.effects = ScriptEffects(flow, recorded)
        self.kept: set[ast.stmt] = set()
        self.needed: set[Variable] = set()
        self._needed_in: dict[Variable, set[Scope | str]] = {}
        self._called: set[ast.AST] = set()
        self._pending: list[tuple[ast.stmt, bool]] = []
        statement = self.scopes.statement(target)
        in_lambda = isinstance(self.scopes.of_node[target].node, ast.Lambda)
        self.later = self._later(statement) if not in_lambda else set()
        self._keep(statement, reached=True)
        if in_lambda:
            self._call_lambda(statement)
        while self._pending:
            self._take(*self._pending.pop())

    def _keep(self, statement: ast.stmt, reached: bool = False) -> None:
        """Keep a statement; it must be `reached` if it acts outside of its function."""
        self._pending.append((statement, reached))

    def _take(self, statement: ast.stmt, reached: bool) -> None:
        if statement in self.later:
            return
        function = self.scopes.of_node[statement].node
        if reached and not isinstance(function, ast.Module) and function not in self._called:
            self._called.add(function)
            for caller in self._callers(function):
                self._keep(caller, reached=True)
        if statement in self.kept:
            return
        self.kept.add(statement)
        for variable in self.effects.of[statement].uses:
            self._need(variable)
        for variable in self.effects.of[statement].whole:
            for extending in self.effects.extenders.pop(self.effects.same(variable), ()):
                self._keep(extending, reached=True)
        self._keep_parents(statement)
        self._keep_parts(statement)

    def _keep_parents(self, statement: ast.stmt) -> None:
        parent = self.scopes.parent[statement]
        while not isinstance(parent, ast.stmt | ast.Module):
            parent = self.scopes.parent[parent]
        if isinstance(parent, ast.stmt):
            self._keep(parent)

    def _keep_parts(self, statement: ast.stmt) -> None:
        """What of a compound statement stays with it."""
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for inner in statements(statement.body):
                    if isinstance(inner, ast.Return | ast.Global | ast.Nonlocal) or _yields(inner):
                        self._keep(inner)
                scope = self.scopes.opened_by[statement]
                for name in scope.parameters:
                    self._need((scope, name))
            case ast.ClassDef():
                library = any(not self.flow.definitions(base) for base in statement.bases)
                for inner in statement.body:
                    if not isinstance(inner, Function) or library or _is_implicit(inner.name):
                        self._keep(inner)
            case ast.For() | ast.AsyncFor() | ast.While():
                for jump in _jumps(statement):
                    self._keep(jump)
            case ast.Try() | ast.TryStar():
                # Any statement of the body may be the one that fails.
                for inner in statements(statement.body):
                    self._keep(inner, reached=False)
                for inner in statements([*statement.orelse, *(s for h in statement.handlers for s in h.body)]):
                    if isinstance(inner, ast.Raise):
                        self._keep(inner)

    def _need(self, variable: Variable) -> None:
        if variable in self.needed:
            return
        self.needed.add(variable)
        for statement in self.effects.binders.get(variable, ()):
            self._keep(statement, reached=self._is_outer(statement, variable))
        # Variables that may hold the same object have the same statements that change it, which are kept once; and once
        # more if a second scope needs them, since they are then all to be reached.
        same = self.effects.same(variable)
        scopes = self._needed_in.setdefault(same, set())
        if variable[0] in scopes or len(scopes) > 1:
            return
        scopes.add(variable[0])
        for statement in self.effects.changers.get(same, ()):
            changed = self.effects.of[statement].changes
            local = all(v[0] is self.scopes.of_node[statement] for v in changed if self.effects.same(v) == same)
            self._keep(statement, reached=not local or self._is_outer(statement, variable) or len(scopes) > 1)

    def _is_outer(self, statement: ast.stmt, variable: Variable) -> bool:
        """Whether a variable lives on when the statement's function has ended."""
        scope = self.scopes.of_node[statement]
        return variable[0] is not scope and not (isinstance(variable[0], str) and scope.is_class)

    def _callers(self, function: ast.AST) -> Iterable[ast.stmt]:
        """The statements that may run a function: those that name it, or the class or decorator it is reached by."""
        if isinstance(function, ast.ClassDef | ast.Lambda):
            return [self.scopes.statement(function)]
        assert isinstance(function, Function)
        scope = self.scopes.of_node[function]
        names: list[Variable] = [(scope.home(function.name) or scope, function.name)]
        if scope.is_class:
            owner = scope.node
            assert isinstance(owner, ast.ClassDef)
            outer = self.scopes.of_node[owner]
            implicit = [(outer.home(owner.name) or outer, owner.name)] if _is_implicit(function.name) else []
            names = [("attribute", function.name), *implicit]
        for decorator in function.decorator_list:
            names += [n for n in self.effects.roots(_base(decorator)) if n[0] is self.scopes.module]
        found = [s for name in names for s in self.effects.readers.get(name, ()) if s is not function]
        if not found:
            raise _UnknownCallersError
        return found

    def _call_lambda(self, statement: ast.stmt) -> None:
        """A call in a lambda runs where the names that its statement binds are used."""
        for variable in self.effects.of[statement].binds:
            for reader in self.effects.readers.get(variable, ()):
                self._keep(reader, reached=True)

    def _later(self, statement: ast.stmt) -> set[ast.stmt]:
        """The statements that can run only after this one: those that follow it, where nothing runs it again."""
        later: set[ast.stmt] = set()
        while True:
            scope = self.scopes.of_node[statement]
            loops = [n for n in self._around(statement) if isinstance(n, _LOOPS)]
            if loops:
                later, statement = set(), loops[-1]
            later |= set(self._following(statement))
            if not isinstance(scope.node, Function):
                return later if isinstance(scope.node, ast.Module) else set()
            caller = self._only_caller(scope.node)
            if caller is None:
                return set()
            if isinstance(scope.node, ast.AsyncFunctionDef):
                return later
            statement = caller

    def _only_caller(self, function: Function) -> ast.stmt | None:
        """The statement that runs a function once each time that it runs itself, if there is only one."""
        callers = [s for s in self._callers(function) if not self.scopes.inside(s, function)]
        if len(callers) != 1 or function.decorator_list or any(_yields(s) for s in statements(function.body)):
            return None
        nodes = [n for part in head(callers[0]) for n in ast.walk(part)]
        calls = [n for n in nodes if isinstance(n, ast.Call) and function in self.flow.definitions(n.func)]
        named = [n for n in nodes if isinstance(n, ast.Name) and n.id == function.name]
        repeats = any(isinstance(n, ast.comprehension | ast.Lambda) for n in nodes) or isinstance(callers[0], ast.While)
        return callers[0] if len(calls) == 1 and len(named) <= 1 and not repeats else None

    def _around(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """The statements of the same scope that a statement stands in, the innermost first."""
        node: ast.AST = statement
        scope = self.scopes.of_node[statement].node
        while (node := self.scopes.parent[node]) is not scope:
            if isinstance(node, ast.stmt):
                yield node

    def _following(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        node: ast.AST = statement
        scope = self.scopes.of_node[statement].node
        while node is not scope:
            parent = self.scopes.parent[node]
            for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                if isinstance(block, list) and node in block:
                    after = block[block.index(node) + 1 :]
                    # A later definition may be what an earlier caller means only if it has run, so it is left out too.
                    yield from (n for s in after for n in ast.walk(s) if isinstance(n, ast.stmt))
            node = parent


def _is_implicit(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name in _FRAMEWORK_METHODS


def _base(decorator: ast.expr) -> ast.expr:
    while isinstance(decorator, ast.Call | ast.Attribute):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return decorator


def _yields(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
        return False
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(statement))


def _jumps(loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[ast.stmt]:
    """The statements that leave a loop or its round."""
    for inner in statements(loop.body):
        if isinstance(inner, ast.Break | ast.Continue):
            yield inner
