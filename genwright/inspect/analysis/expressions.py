"""What an expression of a script may be, given what its variables, attributes and functions hold."""

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from genwright.inspect.analysis.abstract_values import (
    Instance,
    Items,
    Local,
    Made,
    Member,
    Partial,
    Ref,
    Text,
    Value,
    Values,
)
from genwright.inspect.analysis.scopes import Scope, Scopes
from genwright.inspect.analysis.syntax import imported_module

# Methods of torch modules (and of much that imitates them) that give back the object itself.
# fmt: off
FLUENT = frozenset({
    "to", "eval", "train", "cuda", "cpu", "half", "float", "double", "bfloat16", "requires_grad_", "share_memory",
    "share_memory_", "compile", "queue",
})
# Functions that give back what they wrap.
WRAPPERS = frozenset({
    "torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.jit.script",
    "torch.jit.trace", "torch.jit.optimize_for_inference", "accelerate.Accelerator.prepare",
})
# Functions that give back the path they are given, and those that declare a parameter's or an option's default.
_PATHS = frozenset({
    "builtins.str", "pathlib.Path", "pathlib.PurePath", "os.fspath", "os.path.abspath", "os.path.expanduser",
    "os.path.normpath", "os.path.realpath", "typer.Option", "typer.Argument",
})
# fmt: on

NOTHING: Values = frozenset()


class Expressions:
    """What is known of one script's values; an expression about which nothing is known has none."""

    def __init__(
        self,
        tree: ast.Module,
        package: str,
        makes: Callable[[Ref], Ref | None],
        texts: frozenset[ast.Constant],
        scopes: Scopes | None,
    ) -> None:
        self.tree, self.package, self.makes, self.texts = tree, package, makes, texts
        self.scopes = scopes or Scopes(tree)
        self._variables: dict[tuple[Scope, str], Values] = defaultdict(frozenset)
        self._attributes: dict[tuple[ast.AST, str], Values] = defaultdict(frozenset)
        self._returns: dict[ast.AST, Values] = defaultdict(frozenset)
        self._options: dict[str, Values] = defaultdict(frozenset)  # defaults of the command line's options
        self._memo: dict[ast.expr, Values] = {}

    def scope(self, node: ast.AST) -> Scope:
        return self.scopes.of_node[node]

    def values(self, node: ast.expr) -> Values:
        """What an expression may be."""
        if node not in self._memo:
            self._memo[node] = NOTHING  # ends the recursion of a value that depends on itself
            self._memo[node] = self._evaluate(node)
        return self._memo[node]

    def definitions(self, node: ast.expr) -> list[ast.AST]:
        """The script's own functions and classes that an expression may be, in the order of their lines."""
        found = [v.node for v in self.values(node) if isinstance(v, Local)]
        return sorted(found, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))

    def _evaluate(self, node: ast.expr) -> Values:
        match node:
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                found = frozenset().union(*(self._member(v, node.attr) for v in self.values(node.value)))
                unknown = all(isinstance(v, Member) and isinstance(v.instance, Made) for v in found)
                return found | self._options.get(node.attr, NOTHING) if unknown else found
            case ast.Constant():
                return frozenset([Text(node)]) if node in self.texts else NOTHING
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
                key = node.slice.value if isinstance(node.slice, ast.Constant) else ...
                return held_by(self.values(node.value), key)
            case ast.Lambda():
                return frozenset([Local(node)])
        return NOTHING

    def _container(self, elements: list[ast.expr]) -> Values:
        held = frozenset().union(*map(self.values, elements)) if elements else NOTHING
        return frozenset([Items(held)]) if held else NOTHING

    def _name(self, node: ast.Name) -> Values:
        home = self.scope(node).home(node.id)
        if home is not None:
            return self._variables[home, node.id]
        if hasattr(builtins, node.id):
            return frozenset([Ref(f"builtins.{node.id}")])
        stars = [imported_module(star, self.package) for star in self.scopes.star_imports]
        return frozenset(Ref(f"{m}.{node.id}".lstrip("."), undefined=True) for m in stars or [""])

    def _member(self, value: Value, name: str) -> Values:
        if isinstance(value, Ref):
            return frozenset([Ref(f"{value.dotted}.{name}")])
        if isinstance(value, Local):
            return self._attribute(value.node, name)
        if isinstance(value, Instance) and value.derived and name == "module":
            return frozenset([value])  # what DataParallel wraps
        if isinstance(value, Instance):
            own = self._attribute(value.of.node, name) if isinstance(value.of, Local) else NOTHING
            # Only what a class inherits from elsewhere can be something else than what the script gives it.
            return own or (frozenset([Member(value, name)]) if self.base_of(value.of) else NOTHING)
        return frozenset([Member(value, name)]) if isinstance(value, Made) else NOTHING

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
                elif value.dotted == "functools.partial" and node.args:
                    result |= {v if isinstance(v, Partial) else Partial(v) for v in self.values(node.args[0])}
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
            elif _wraps(value) and len(node.args) == 1:
                result |= {_derived(v) for v in self.values(node.args[0])}
        return frozenset(result)

    def _super(self, node: ast.Call) -> Values:
        scope: Scope | None = self.scope(node)
        while scope is not None and not scope.is_class:
            scope = scope.parent
        if scope is None:
            return NOTHING
        return frozenset(Instance(base) for base in self.base_of(Local(scope.node)))


def held_by(values: Values, key: object = None) -> Values:
    """What containers hold, and the item with a key of what calls gave."""
    held = frozenset().union(*(v.values for v in values if isinstance(v, Items)))
    return held | {v.part(key) for v in values if isinstance(v, Made)} if key is not None else held


def _wraps(value: Value) -> bool:
    """Whether a method gives back what it wraps."""
    made = value.instance if isinstance(value, Member) else None
    return isinstance(value, Member) and isinstance(made, Made) and f"{made.by}.{value.name}" in WRAPPERS


def _derived(value: Value) -> Value:
    return replace(value, derived=True) if isinstance(value, Instance) else value
