"""What each expression of a script may be: a small, flow-insensitive value analysis.

Values travel through assignments, attributes, containers, calls of the script's own functions and their returns, to a
fixed point. An expression about which nothing is known has no values.
"""

import ast
from collections.abc import Callable
from functools import cached_property

from genwright.inspect.analysis.abstract_values import Instance, Items, Local, Ref, Value, Values
from genwright.inspect.analysis.expressions import NOTHING, Expressions, held_by
from genwright.inspect.analysis.scopes import Scopes
from genwright.inspect.analysis.syntax import Function, defaults, imported_module, passed

_ROUNDS = 12
_MOST = 16  # values that are told apart; what may be more is not resolved anyway
# The nodes that carry values from one place to another.
_CARRIERS = (
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem, ast.Import),
    *(ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Return, ast.Lambda, ast.Call),
)


class Flow(Expressions):
    """The analysis of one script; `makes` tells which class a call of an imported thing makes an object of.

    `texts` are the literals that it follows; `scopes` are the tree's, where they are known.
    """

    def __init__(
        self,
        tree: ast.Module,
        package: str,
        makes: Callable[[Ref], Ref | None],
        texts: frozenset[ast.Constant] = frozenset(),
        scopes: Scopes | None = None,
    ) -> None:
        super().__init__(tree, package, makes, texts, scopes)
        self._changed = True
        self.nodes = [n for n in ast.walk(tree) if n in self.scopes.of_node]
        carriers = [n for n in self.nodes if isinstance(n, _CARRIERS)]
        for _ in range(_ROUNDS):
            if not self._changed:
                break
            self._changed = False
            self._memo.clear()
            for node in carriers:
                self._transfer(node)
        self._memo.clear()

    def callers(self, function: ast.AST) -> list[ast.Call]:
        """The calls that run one of the script's own functions, methods or constructors."""
        return self._callers.get(function, [])

    @cached_property
    def _callers(self) -> dict[ast.AST, list[ast.Call]]:
        found: dict[ast.AST, list[ast.Call]] = {}
        for call in (n for n in self.nodes if isinstance(n, ast.Call)):
            for target in dict.fromkeys(t for t, _ in self._targets(call)):
                found.setdefault(target, []).append(call)
        return found

    def _transfer(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value, self.values(node.value))
            case ast.AnnAssign(value=ast.expr()):
                assert node.value is not None
                self._assign(node.target, node.value, self.values(node.value) | self._annotated(node.annotation))
            case ast.NamedExpr():
                self._assign(node.target, node.value, self.values(node.value))
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._assign(node.target, None, held_by(self.values(node.iter)))
            case ast.withitem(optional_vars=ast.expr()):
                assert node.optional_vars is not None
                self._assign(node.optional_vars, None, self.values(node.context_expr))
            case ast.Import():
                for alias in node.names:
                    dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._bind_name(node, alias.asname or dotted, frozenset([Ref(dotted)]))
            case ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        name = f"{imported_module(node, self.package)}.{alias.name}".lstrip(".")
                        self._bind_name(node, alias.asname or alias.name, frozenset([Ref(name)]))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(node)
            case ast.Return(value=ast.expr()):
                assert node.value is not None
                self._grow(self._returns, self.scope(node).node, self.values(node.value))
            case ast.Lambda():
                self._grow(self._returns, node, self.values(node.body))
            case ast.Call():
                for function, bound in self._targets(node):
                    self._pass(node, function, bound)
                if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                    name, default = self._option(node)
                    self._grow(self._options, name, default)

    def _option(self, node: ast.Call) -> tuple[str, Values]:
        """The name and default of an option: `add_argument("--image", default="path/to/image.jpg")`."""
        keywords = {k.arg: k.value for k in node.keywords}
        names = [keywords["dest"]] if "dest" in keywords else node.args
        texts = [n.value for n in names if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        name = max(texts, key=len, default="").lstrip("-").replace("-", "_")
        return name, self.values(keywords["default"]) if "default" in keywords else NOTHING

    def _targets(self, node: ast.Call) -> list[tuple[ast.AST, bool]]:
        """The script's own functions that a call runs, and whether their first parameter is already bound."""
        targets: list[tuple[ast.AST, bool]] = []
        values = self.values(node.func)
        for value in values if len(values) < _MOST else ():
            if not isinstance(value, Local):
                continue
            if isinstance(value.node, ast.ClassDef):
                for maker in self._attribute(value.node, "__init__"):
                    if isinstance(maker, Local) and not isinstance(maker.node, ast.ClassDef):
                        targets.append((maker.node, True))
            else:
                targets.append((value.node, isinstance(self.scopes.parent.get(value.node), ast.ClassDef)))
        return targets

    def _pass(self, call: ast.Call, function: ast.AST, bound: bool) -> None:
        assert isinstance(function, Function | ast.Lambda)
        scope = self.scopes.opened_by[function]
        is_static = "staticmethod" in map(ast.unparse, getattr(function, "decorator_list", []))
        for name, value in passed(call, function, bound and not is_static):
            if name in scope.bound:
                self._grow(self._variables, (scope, name), self.values(value))

    def _define(self, node: Function | ast.ClassDef) -> None:
        self._bind_name(node, node.name, frozenset([Local(node)]))
        if isinstance(node, ast.ClassDef):
            return
        scope = self.scopes.opened_by[node]
        arguments = [*node.args.posonlyargs, *node.args.args]
        owner = self.scopes.parent[node]
        decorators = [ast.unparse(d) for d in node.decorator_list]
        if isinstance(owner, ast.ClassDef) and arguments and "staticmethod" not in decorators:
            itself: Value = Local(owner) if "classmethod" in decorators else Instance(Local(owner))
            self._grow(self._variables, (scope, arguments[0].arg), frozenset([itself]))
        for argument in [*arguments, *node.args.kwonlyargs]:
            if argument.annotation is not None:
                self._grow(self._variables, (scope, argument.arg), self._annotated(argument.annotation))
        for argument, default in defaults(node.args):
            self._grow(self._variables, (scope, argument.arg), self.values(default))
        for decorator in node.decorator_list if self.texts else ():  # click's options
            name, values = self._option(decorator) if isinstance(decorator, ast.Call) else ("", NOTHING)
            if name in scope.parameters:
                self._grow(self._variables, (scope, name), values)

    def _annotated(self, annotation: ast.expr) -> Values:
        """The object that an annotation promises, where it is one of the classes of interest."""
        found: set[Value] = set()
        for value in self.values(annotation):
            made = self.makes(value) if isinstance(value, Ref) else None
            # A factory's name is no type.
            if made is not None and isinstance(value, Ref) and _last(made) == _last(value):
                found.add(Instance(made))
        return frozenset(found)

    def _assign(self, target: ast.expr, source: ast.expr | None, values: Values) -> None:
        match target:
            case ast.Name():
                self._bind_name(target, target.id, values)
            case ast.Attribute():
                for owner in self.values(target.value):
                    if isinstance(owner, Instance) and isinstance(owner.of, Local):
                        self._grow(self._attributes, (owner.of.node, target.attr), values)
                    elif isinstance(owner, Local):
                        self._grow(self._attributes, (owner.node, target.attr), values)
            case ast.Tuple() | ast.List():
                same = isinstance(source, ast.Tuple | ast.List) and len(source.elts) == len(target.elts)
                for index, element in enumerate(target.elts):
                    part = source.elts[index] if same and isinstance(source, ast.Tuple | ast.List) else None
                    self._assign(element, part, self.values(part) if part is not None else held_by(values, index))
            case ast.Starred():
                self._assign(target.value, None, frozenset([Items(values)]) if values else NOTHING)

    def _bind_name(self, node: ast.AST, name: str, values: Values) -> None:
        scope = self.scope(node)
        home = scope.home(name) or scope
        self._grow(self._variables, (home, name), values)
        if home.is_class:
            self._grow(self._attributes, (home.node, name), values)

    def _grow(self, table: dict, key: object, values: Values) -> None:
        if not values <= table[key] and len(table[key]) < _MOST:
            table[key] |= values
            self._changed = True


def _last(reference: Ref) -> str:
    return reference.dotted.rpartition(".")[2]
