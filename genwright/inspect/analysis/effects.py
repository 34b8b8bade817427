"""What each statement of a script reads, binds and may change, for a program slice.

A variable is a name in its scope, an attribute by its name (whatever its object), or hidden state such as the random
numbers' that calls share. What cannot be told is taken to read and to change.
"""

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from genwright.inspect.analysis.abstract_values import Local, Ref
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.scopes import Scope
from genwright.inspect.analysis.syntax import Function, arguments, called_name, defaults, passed

Variable = tuple[Scope | str, str]

RANDOM: Variable = ("hidden", "random numbers")
KEYBOARD: Variable = ("hidden", "keyboard")
FILES: Variable = ("hidden", "files")
IMPORTS: Variable = ("hidden", "import path")
STARS: Variable = ("hidden", "star imports")

_DRAWS = frozenset(
    {"rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli", "manual_seed", "seed"}
    | {"rand_like", "randn_like", "randint_like", "poisson", "dropout"}
)
_WRITES = frozenset(
    {"write", "writelines", "write_text", "write_bytes", "save", "savez", "savetxt", "dump", "makedirs", "mkdir"}
    | {"copy", "copyfile", "copytree", "move", "rename", "imwrite", "imsave", "to_csv", "savefig", "touch", "chdir"}
    | {"save_pretrained", "save_image", "unlink", "remove", "rmtree", "close", "flush", "run", "system", "extractall"}
)
_READS = frozenset({"open", "listdir", "glob", "rglob", "exists", "isfile", "isdir", "is_file", "is_dir", "iterdir"})
# Builtins and libraries whose functions leave their arguments as they are.
_PURE_BUILTINS = frozenset(dir(builtins)) - {"next", "iter", "map", "filter", "setattr", "delattr", "exec", "eval"}
_PURE_LIBRARIES = ("math.", "os.path.", "json.", "numpy.", "torch.", "logging.", "time.", "re.", "pathlib.")
_CHANGING = frozenset({"shuffle", "copyto", "put", "place", "putmask", "fill_diagonal", "init"})
_PURE_METHODS = frozenset(dir(str)) | {
    *("to", "cpu", "cuda", "numpy", "item", "tolist", "float", "half", "long", "int", "bool", "size", "dim", "reshape"),
    *("view", "permute", "transpose", "squeeze", "unsqueeze", "mean", "sum", "std", "max", "min", "argmax", "clone"),
    *("detach", "astype", "convert", "resize", "keys", "values", "items", "get", "copy", "total_seconds", "joinpath"),
}


@dataclass
class Effects:
    """Of one statement, or of the head of a compound one.

    `whole` are the variables among `uses` of which more than an attribute is read, `extends` those whose objects get an
    attribute.
    """

    uses: set[Variable] = field(default_factory=set)
    whole: set[Variable] = field(default_factory=set)
    binds: set[Variable] = field(default_factory=set)
    changes: set[Variable] = field(default_factory=set)
    extends: set[Variable] = field(default_factory=set)


class ScriptEffects:
    """The effects of every statement; `recorded` are calls whose result is known, so that only some arguments run."""

    def __init__(self, flow: Flow, recorded: dict[ast.Call, bool]) -> None:
        self.flow, self.recorded = flow, recorded
        self.of: dict[ast.stmt, Effects] = {}
        self._same: dict[Variable, Variable] = {}
        for statement in (n for n in flow.nodes if isinstance(n, ast.stmt)):
            self.of[statement] = effects = Effects()
            for part in head(statement):
                for node in self._evaluated(part):
                    self._node(node, effects)
            self._bound(statement, effects)
        self.readers: dict[Variable, list[ast.stmt]] = defaultdict(list)
        self.binders: dict[Variable, list[ast.stmt]] = defaultdict(list)
        self.changers: dict[Variable, list[ast.stmt]] = defaultdict(list)
        self.extenders: dict[Variable, list[ast.stmt]] = defaultdict(list)
        for statement, effects in self.of.items():
            for variable in effects.uses:
                self.readers[variable].append(statement)
            for variable in effects.binds:
                self.binders[variable].append(statement)
            for same in {self.same(variable) for variable in effects.changes}:
                self.changers[same].append(statement)
            for same in {self.same(variable) for variable in effects.extends}:
                self.extenders[same].append(statement)

    def same(self, variable: Variable) -> Variable:
        """The representative of all variables that may hold the same object (union-find, with path halving)."""
        while variable in self._same:
            above = self._same[variable]
            self._same[variable] = self._same.get(above, above)
            variable = above
        return variable

    def _join(self, variables: set[Variable]) -> None:
        found = {self.same(v) for v in variables}
        if found:
            first = found.pop()
            self._same.update(dict.fromkeys(found, first))

    def variable(self, node: ast.Name) -> Variable:
        home = self.flow.scope(node).home(node.id)
        if home is not None:
            return home, node.id
        return STARS if self.flow.scopes.star_imports and not hasattr(builtins, node.id) else ("builtin", node.id)

    def _evaluated(self, part: ast.AST) -> Iterator[ast.AST]:
        """The nodes that run; of a recorded call only the arguments that it is still given."""
        pending = [part]
        while pending:
            node = pending.pop()
            if node in self.flow.scopes.of_node:
                yield node
            elif not isinstance(node, ast.arguments):  # a lambda's
                continue
            if isinstance(node, ast.Call) and node in self.recorded:
                pending += arguments(node) if self.recorded[node] else []
            else:
                pending += ast.iter_child_nodes(node)

    def _node(self, node: ast.AST, effects: Effects) -> None:
        match node:
            case ast.Name(ctx=ast.Load()):
                effects.uses.add(self.variable(node))
                if not isinstance(self.flow.scopes.parent[node], ast.Attribute):
                    effects.whole.add(self.variable(node))
            case ast.Name():
                effects.binds.add(self.variable(node))
            case ast.Attribute(ctx=ast.Load()):
                effects.uses.add(("attribute", node.attr))
            case ast.Attribute():
                effects.binds.add(("attribute", node.attr))
                effects.extends |= self.roots(node.value)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                effects.changes |= self.roots(node.value)
            case ast.NamedExpr():
                self._join(self.roots(node.target) | self.roots(node.value))
            case ast.comprehension():
                self._join(self.roots(node.target) | self.roots(node.iter))
            case ast.Call() if node not in self.recorded:
                self._call(node, effects)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                effects.binds.add((self.flow.scope(node).home(name) or self.flow.scope(node), name))

    def _bound(self, statement: ast.stmt, effects: Effects) -> None:
        """What the kind of a statement binds, and which variables it makes hold the same object."""
        scope = self.flow.scope(statement)
        match statement:
            case ast.Import() | ast.ImportFrom():
                effects.uses.add(IMPORTS)
                for alias in statement.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    effects.binds.add(STARS if name == "*" else (scope.home(name) or scope, name))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                effects.binds.add((scope.home(statement.name) or scope, statement.name))
            case ast.AugAssign():
                effects.uses |= self.roots(statement.target)
                effects.changes |= self.roots(statement.target)
            case ast.Assign():
                for target in statement.targets:
                    self._join(self.roots(target) | self.roots(statement.value))
            case ast.AnnAssign(value=ast.expr()):
                assert statement.value is not None
                self._join(self.roots(statement.target) | self.roots(statement.value))
            case ast.For() | ast.AsyncFor():
                self._join(self.roots(statement.target) | self.roots(statement.iter))
            case ast.Try():
                for handler in statement.handlers:
                    if handler.name:
                        effects.binds.add((scope.home(handler.name) or scope, handler.name))
        if scope.is_class:
            effects.binds |= {("attribute", name) for home, name in effects.binds if home is scope}

    def roots(self, node: ast.AST) -> set[Variable]:
        """The variables that hold the object of an expression, or hold what it holds."""
        match node:
            case ast.Name():
                variable = self.variable(node)
                return {variable} if variable[0] != "builtin" else set()
            case ast.Attribute():
                return {("attribute", node.attr)}
            case ast.Subscript() | ast.Starred() | ast.Await() | ast.NamedExpr():
                return self.roots(node.value)
            case ast.List() | ast.Tuple() | ast.Set():
                return set().union(*map(self.roots, node.elts))
            case ast.Dict():
                return set().union(*(self.roots(v) for v in node.values))
            case ast.IfExp():
                return self.roots(node.body) | self.roots(node.orelse)
            case ast.BoolOp():
                return set().union(*map(self.roots, node.values))
            case ast.Call(func=ast.Attribute() as method) if node not in self.recorded:
                # What a method gives may be a part of its object, as with `parser.add_subparsers()`.
                imported = any(isinstance(v, Ref) for v in self.flow.values(method))
                return set() if imported or method.attr in _PURE_METHODS else self.roots(method.value)
        return set()

    def _call(self, node: ast.Call, effects: Effects) -> None:
        names = {v.dotted for v in self.flow.values(node.func) if isinstance(v, Ref)}
        last = called_name(node)
        for name in names:
            self._hidden(name, effects)
        if last in _WRITES or last in _READS:
            effects.uses.add(FILES)
        if last in _WRITES or (last == "open" and any(isinstance(a, ast.Constant) for a in node.args[1:])):
            effects.binds.add(FILES)
        if isinstance(node.func, ast.Attribute) and not names and last not in _PURE_METHODS:
            effects.changes |= self._owner(node.func.value)
        discarded = isinstance(self.flow.scopes.parent[node], ast.Expr)
        if discarded and names and isinstance(node.func, ast.Attribute) and last not in _WRITES:
            # `torch.set_default_dtype(...)`, `dist_util.setup_dist()`: done for what it changes in its module.
            effects.changes |= self._owner(node.func.value)
        given = set[Variable]().union(*map(self.roots, arguments(node)))
        if names and all(_is_pure(name) for name in names):
            return
        if last not in _PURE_METHODS or names:
            effects.changes |= given
        if last in ("append", "extend", "add", "insert", "update", "setdefault", "put", "appendleft"):
            self._join(given | self.roots(getattr(node.func, "value", node.func)))
        for target in (v.node for v in self.flow.values(node.func) if isinstance(v, Local)):
            self._parameters(node, target)

    def _owner(self, receiver: ast.expr) -> set[Variable]:
        """What a method changes: its object, and the object that it was reached through."""
        found = self.roots(receiver)
        while isinstance(receiver, ast.Attribute | ast.Subscript):
            receiver = receiver.value
            found |= self.roots(receiver)
        return found

    def _hidden(self, name: str, effects: Effects) -> None:
        """Hidden state is read and changed at once, so that the calls that share it stay together."""
        module, _, last = name.rpartition(".")
        found: set[Variable] = set()
        if module == "random" or ".random" in module or last in ("set_seed", "seed_everything"):
            found.add(RANDOM)
        if name.startswith("torch.") and (last in _DRAWS or name.startswith("torch.nn.")):
            found.add(RANDOM)
        if last in ("input", "getpass", "prompt", "confirm", "ask") or name.startswith("sys.stdin"):
            found.add(KEYBOARD)
        if name.startswith(("sys.path.", "site.")):
            found.add(IMPORTS)
        effects.uses |= found
        effects.binds |= found

    def _parameters(self, call: ast.Call, function: ast.AST) -> None:
        """A parameter holds what the call passes."""
        if isinstance(function, ast.ClassDef):
            for made in function.body:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    self._parameters(call, made)
            return
        assert isinstance(function, Function | ast.Lambda)
        scope = self.flow.scopes.opened_by[function]
        given = list(passed(call, function, isinstance(self.flow.scopes.parent.get(function), ast.ClassDef)))
        stars = [a for a in call.args if isinstance(a, ast.Starred)] + [k.value for k in call.keywords if not k.arg]
        given += [(name, star) for star in stars for name in scope.parameters]  # any of them may hold an item
        for name, value in given:
            if name in scope.parameters:
                self._join({(scope, name)} | self.roots(value))


def head(statement: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates itself; the blocks of a compound statement are statements of their own."""
    match statement:
        case ast.If() | ast.While():
            return [statement.test]
        case ast.For() | ast.AsyncFor():
            return [statement.target, statement.iter]
        case ast.With() | ast.AsyncWith():
            return [*statement.items]
        case ast.Match():
            guards = [case.guard for case in statement.cases if case.guard]
            return [statement.subject, *(case.pattern for case in statement.cases), *guards]
        case ast.Try() | ast.TryStar():
            return [handler.type for handler in statement.handlers if handler.type]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            given = statement.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            notes = [a.annotation for a in every if a and a.annotation]
            values = [default for _, default in defaults(given)]
            return [*statement.decorator_list, *values, *notes, *([statement.returns] if statement.returns else [])]
        case ast.ClassDef():
            return [*statement.decorator_list, *statement.bases, *statement.keywords]
    return [*ast.iter_child_nodes(statement)]


def _is_pure(name: str) -> bool:
    module, _, last = name.rpartition(".")
    if module == "builtins":
        return last in _PURE_BUILTINS
    return name.startswith(_PURE_LIBRARIES) and last not in _CHANGING and not last.endswith("_")
