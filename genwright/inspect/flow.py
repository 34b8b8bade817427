"""What each expression of a script may be: a small, flow-insensitive value analysis.

Values travel through assignments, attributes, containers, calls of the script's own functions and their returns, to a
fixed point. An expression about which nothing is known has no values.
"""

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from genwright.inspect.scopes import Scope, Scopes
from genwright.inspect.values import Instance, Items, Local, Made, Member, Ref, Text, Value, Values

# Methods of torch modules (and of much that imitates them) that give back the object itself.
# fmt: off
FLUENT = frozenset({
    "to", "eval", "train", "cuda", "cpu", "half", "float", "double", "bfloat16", "requires_grad_", "share_memory",
    "share_memory_", "compile", "queue",
})
# Functions that give back what they wrap.
WRAPPERS = frozenset({
    "torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.jit.script",
})
# Functions that give back the path they are given, and those that declare a parameter's or an option's default.
_PATHS = frozenset({
    "builtins.str", "pathlib.Path", "pathlib.PurePath", "os.fspath", "os.path.abspath", "os.path.expanduser",
    "os.path.normpath", "os.path.realpath", "typer.Option", "typer.Argument",
})
# fmt: on
_ROUNDS = 12
_MOST = 50  # values that are told apart; what may be more is not resolved anyway
# The nodes that carry values from one place to another.
_CARRIERS = (
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem, ast.Import),
    *(ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Return, ast.Lambda, ast.Call),
)


_NOTHING: Values = frozenset()


class Flow:
    """The analysis of one script; `makes` tells which class a call of an imported thing makes an object of.

    `texts` are the literals that it follows.
    """

    def __init__(
        self,
        tree: ast.Module,
        package: str,
        makes: Callable[[Ref], Ref | None],
        texts: frozenset[ast.Constant] = frozenset(),
    ) -> None:
        self.tree, self.package, self.makes, self.texts = tree, package, makes, texts
        self.scopes = Scopes(tree)
        self._variables: dict[tuple[Scope, str], Values] = defaultdict(frozenset)
        self._attributes: dict[tuple[ast.AST, str], Values] = defaultdict(frozenset)
        self._returns: dict[ast.AST, Values] = defaultdict(frozenset)
        self._options: dict[str, Values] = defaultdict(frozenset)  # defaults of the command line's options
        self._changed = True
        self.nodes = [n for n in ast.walk(tree) if n in self.scopes.of_node]
        self._memo: dict[ast.expr, Values] = {}
        carriers = [n for n in self.nodes if isinstance(n, _CARRIERS)]
        for _ in range(_ROUNDS):
            if not self._changed:
                break
            self._changed = False
            self._memo.clear()
            for node in carriers:
                self._transfer(node)
        self._memo.clear()

    def scope(self, node: ast.AST) -> Scope:
        return self.scopes.of_node[node]

    def values(self, node: ast.expr) -> Values:
        """What an expression may be."""
        if node not in self._memo:
            self._memo[node] = _NOTHING  # a recursive question has no answer of its own
            self._memo[node] = self._evaluate(node)
        return self._memo[node]

    def definitions(self, node: ast.expr) -> list[ast.AST]:
        """The script's own functions and classes that an expression may be, in the order of their lines."""
        found = [v.node for v in self.values(node) if isinstance(v, Local)]
        return sorted(found, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))

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

    def _evaluate(self, node: ast.expr) -> Values:
        match node:
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                found = frozenset().union(*(self._member(v, node.attr) for v in self.values(node.value)))
                unknown = all(isinstance(v, Member) and isinstance(v.instance, Made) for v in found)
                return found | self._options.get(node.attr, _NOTHING) if unknown else found
            case ast.Constant():
                return frozenset([Text(node)]) if node in self.texts else _NOTHING
            case ast.Call():
                return self._call(node)
            case ast.Await() | ast.NamedExpr() | ast.Starred():
                return self.values(node.value)
            case ast.IfExp():
                return self.values(node.body) | self.values(node.orelse)
            case ast.BoolOp():
                return frozenset().union(*map(self.values, node.values))
            case ast.List() | ast.Tuple() | ast.Set():
                return self._container(node.elts)
            case ast.Dict():
                return self._container([v for v in node.values if v])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._container([node.elt])
            case ast.Subscript():
                return _held(self.values(node.value))
            case ast.Lambda():
                return frozenset([Local(node)])
        return _NOTHING

    def _container(self, elements: list[ast.expr]) -> Values:
        held = frozenset().union(*map(self.values, elements)) if elements else _NOTHING
        return frozenset([Items(held)]) if held else _NOTHING

    def _name(self, node: ast.Name) -> Values:
        home = self.scope(node).home(node.id)
        if home is not None:
            return self._variables[home, node.id]
        if hasattr(builtins, node.id):
            return frozenset([Ref(f"builtins.{node.id}")])
        stars = [self._module(star) for star in self.scopes.star_imports]
        return frozenset(Ref(f"{m}.{node.id}".lstrip("."), undefined=True) for m in stars or [""])

    def _member(self, value: Value, name: str) -> Values:
        if isinstance(value, Ref):
            return frozenset([Ref(f"{value.dotted}.{name}")])
        if isinstance(value, Local):
            return self._attribute(value.node, name)
        if isinstance(value, Instance):
            own = self._attribute(value.of.node, name) if isinstance(value.of, Local) else _NOTHING
            return own or frozenset([Member(value, name)])
        return frozenset([Member(value, name)]) if isinstance(value, Made) else _NOTHING

    def _attribute(self, owner: ast.AST, name: str) -> Values:
        """A class's attribute, its own or that of a base which the script defines."""
        found = self._attributes[owner, name]
        if isinstance(owner, ast.ClassDef):
            for base in owner.bases:
                for value in self.values(base):
                    if isinstance(value, Local) and value.node is not owner:
                        found |= self._attribute(value.node, name)
        return found

    def base_of(self, value: Ref | Local) -> frozenset[Ref]:
        """The imported classes that a class is, or inherits from."""
        if isinstance(value, Ref):
            return frozenset([value])
        found: set[Ref] = set()
        for base in getattr(value.node, "bases", []):
            for held in self.values(base):
                if isinstance(held, Ref | Local) and held != value:
                    found |= self.base_of(held)
        return frozenset(found)

    def _call(self, node: ast.Call) -> Values:
        result: set[Value] = set()
        # Of several star imports the one that has a class of interest is meant.
        known = any(isinstance(v, Ref) and self.makes(v) for v in self.values(node.func))
        for value in self.values(node.func):
            if isinstance(value, Ref):
                made = self.makes(value)
                if made is not None:
                    result.add(Instance(made, node))
                elif value.dotted in WRAPPERS and node.args:
                    result |= {_derived(v) for v in self.values(node.args[0])}
                elif value.dotted in _PATHS and self.texts and (node.args or node.keywords):
                    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "default")]
                    if len(node.args) <= 1 or value.dotted.startswith("typer."):
                        result |= {v for a in given for v in self.values(a) if isinstance(v, Text)}
                    if not value.dotted.startswith("builtins."):
                        result.add(Made(value.dotted))
                elif value.dotted == "builtins.super":
                    result |= self._super(node)
                elif not value.dotted.startswith("builtins.") and not (known and value.undefined):
                    result.add(Made(value.dotted))
            elif isinstance(value, Local) and isinstance(value.node, ast.ClassDef):
                result.add(Instance(value, node))
            elif isinstance(value, Local):
                result |= self._returns[value.node]
            elif isinstance(value, Member) and value.name in FLUENT:
                result.add(_derived(value.instance))
        return frozenset(result)

    def _super(self, node: ast.Call) -> Values:
        scope: Scope | None = self.scope(node)
        while scope is not None and not scope.is_class:
            scope = scope.parent
        if scope is None:
            return _NOTHING
        return frozenset(Instance(base) for base in self.base_of(Local(scope.node)))

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
                self._assign(node.target, None, _held(self.values(node.iter)))
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
                        reference = frozenset([Ref(f"{self._module(node)}.{alias.name}".lstrip("."))])
                        self._bind_name(node, alias.asname or alias.name, reference)
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
        return name, self.values(keywords["default"]) if "default" in keywords else _NOTHING

    def _targets(self, node: ast.Call) -> list[tuple[ast.AST, bool]]:
        """The script's own functions that a call runs, and whether their first parameter is already bound."""
        targets: list[tuple[ast.AST, bool]] = []
        for value in self.values(node.func):
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
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        scope = self.scopes.opened_by[function]
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
        decorators = [ast.unparse(d) for d in getattr(function, "decorator_list", [])]
        if bound and "staticmethod" not in decorators:
            names = names[1:]
        for name, argument in zip(names, call.args, strict=False):
            if isinstance(argument, ast.Starred):
                break
            self._grow(self._variables, (scope, name), self.values(argument))
        for keyword in call.keywords:
            if keyword.arg and keyword.arg in scope.bound:
                self._grow(self._variables, (scope, keyword.arg), self.values(keyword.value))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
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
        defaults = list(zip(reversed(arguments), reversed(node.args.defaults), strict=False))
        defaults += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
        for argument, default in defaults:
            self._grow(self._variables, (scope, argument.arg), self.values(default))
        for decorator in node.decorator_list if self.texts else ():  # click's options
            name, values = self._option(decorator) if isinstance(decorator, ast.Call) else ("", _NOTHING)
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
                    self._assign(element, part, self.values(part) if part is not None else _held(values))
            case ast.Starred():
                self._assign(target.value, None, frozenset([Items(values)]) if values else _NOTHING)

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

    def _module(self, node: ast.ImportFrom) -> str:
        """The absolute name of the module that a `from` import means."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - (node.level - 1)] if node.level > 1 else parts
        return ".".join([*parts, *([node.module] if node.module else [])])


def _held(values: Values) -> Values:
    return frozenset().union(*(v.values for v in values if isinstance(v, Items)))


def _derived(value: Value) -> Value:
    return replace(value, derived=True) if isinstance(value, Instance) else value


def _last(reference: Ref) -> str:
    return reference.dotted.rpartition(".")[2]
