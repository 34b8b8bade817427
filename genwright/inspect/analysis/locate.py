"""Every call and construction site of a project's interfaces in a script, and what could not be resolved."""

import ast
import warnings
from collections.abc import Iterable, Iterator

from genwright.errors import UserError
from genwright.inspect.analysis.abstract_values import Instance, Items, Local, Made, Member, Partial, Ref, Value, Values
from genwright.inspect.analysis.bind import bind
from genwright.inspect.analysis.escapes import Escapes
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.match import Match, Matcher
from genwright.inspect.analysis.sites import Location, Site, Unresolved
from genwright.inspect.analysis.syntax import called_name, dotted


def parse(source: str, name: str) -> ast.Module:
    """Parse a script, or say in one sentence why not."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except SyntaxError as error:
        raise UserError(f"{name} is not Python that can be read: line {error.lineno}: {error.msg}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{name} is not Python that can be read: {error}.") from error


def locate(
    tree: ast.Module,
    manifest: Manifest,
    module: str,
    package: str = "",
    texts: frozenset[ast.Constant] = frozenset(),
    earlier: Location | None = None,
) -> Location:
    """Find the sites; `module` is the script's own dotted name in its repository, `package` that of its folder.

    `texts` are literals that the data flow follows too; `earlier` is a location in the same tree.
    """
    try:
        return _Locator(manifest, Matcher(tree, manifest, module, package, texts, earlier)).location()
    except RecursionError as error:
        raise UserError(f"{module} nests its expressions too deeply to be analysed.") from error


class _Locator:
    def __init__(self, manifest: Manifest, matcher: Matcher) -> None:
        self.manifest, self.matcher = manifest, matcher
        self.members = {i.member for i in manifest.interfaces if i.kind == "method"} - {"__call__"}
        self.flow = self.matcher.flow
        self.nodes = self.flow.nodes
        self.created: dict[str, list[ast.Call]] = {}
        self.rank = {i.name: index for index, i in enumerate(manifest.interfaces)}
        self.matched: dict[Values, list[Match]] = {}
        self.others: dict[Values, list[str]] = {}  # what else such a callee may be, in words
        self.held: set[str] = set()  # interfaces that are called through containers and partials
        self.defined: dict[ast.AST, list[Interface]] = {}
        for own, node in self.matcher.defined:
            self.defined.setdefault(node, []).append(own)
        self.own_scopes = {(own.name, self.flow.scope(node)) for own, node in self.matcher.defined}

    def location(self) -> Location:
        calls = sorted((n for n in self.nodes if isinstance(n, ast.Call)), key=lambda n: (n.lineno, n.col_offset))
        for call in calls:
            for interface, _, _ in self._matches(call):
                if interface.kind == "class":
                    self.created.setdefault(interface.name, []).append(call)
        sites: list[Site] = []
        unresolved: list[Unresolved] = []
        for call in calls:
            found = self._site(call)
            if isinstance(found, Site):
                sites.append(found)
            elif found is not None:
                unresolved.append(found)
        unresolved += Escapes(self.matcher, self.held, self._is_internal).unresolved()
        unresolved.sort(key=lambda u: (u.line, u.text))
        return Location(sites, unresolved, self.matcher.defined, self.flow, self.matcher.classes)

    def _matches(self, call: ast.Call) -> list[Match]:
        """The interfaces that a call may mean, in the manifest's order."""
        values = self.flow.values(call.func)
        if values not in self.matched:
            found = {v: self.matcher.match(v) for v in values}
            matches = [m for m in found.values() if m]
            self.matched[values] = sorted(matches, key=lambda m: (self.rank.get(m[0].name, -1), m[0].name, m[1]))
            # A name that only star imports may define is theirs whose module the manifest names.
            others = [v for v, match in found.items() if not match and not isinstance(v, Items)]
            self.others[values] = sorted(_describe(v) for v in others if not (isinstance(v, Ref) and v.undefined))
        return self.matched[values]

    def _site(self, call: ast.Call) -> Site | Unresolved | None:
        values = self.flow.values(call.func)
        matches = self._matches(call)
        text = dotted(call.func)
        if not matches:
            return self._near_miss(call, values, text)
        interface, factory, _ = matches[0]
        also = sorted({m[0].name for m in matches} - {interface.name})
        also += self.others[values]
        if interface.kind == "function" and self._by_own_name(call.func, interface):
            # The script's global is looked up when the call runs: whatever it is rebound to by then is seen.
            also = []
        # What a container or a partial holds is seen when it is called.
        indirect = interface.kind != "class" and (
            isinstance(call.func, ast.Subscript) or any(isinstance(v, Partial) for v in values)
        )
        if also and interface.kind != "method" and not indirect:
            return Unresolved(call.lineno, text, f"may be {interface.name} or {also[0]}")
        if self._internal(call, interface):
            return None
        if not isinstance(call.func, ast.Name | ast.Attribute) and not indirect:
            return Unresolved(call.lineno, text, f"{interface.name} is called on an expression without a name")
        if self.flow.scopes.in_f_string(call):
            return Unresolved(
                call.lineno, text, f"{interface.name} is called inside an f-string; give it a line of its own"
            )
        signature, note = interface.factories.get(factory) if factory else interface.signature, ""
        if any(isinstance(v, Ref) and v.undefined and "." not in v.dotted for v in values):
            note = f"nothing in the script defines {text}; it is taken from {interface.module}"
        if any(isinstance(v, Local) and _is_command(v.node) for v in values):
            # What a click or typer command is called with, its parser takes from the command line.
            signature, note = None, "a command: its arguments come from the command line"
        if also or indirect:
            # The object decides at run time which method this is, so the arguments stay as they are written.
            signature, note = None, f"may also be {also[0]}" if also else f"called through {text}"
        instances = [m[2] for m in matches]
        on_class = all(i is None for i in instances)
        on_object = (
            interface.kind == "method"
            and not on_class
            and (bool(also) or self._needs_object(call, interface, instances))
        )
        if indirect:
            self.held |= {m[0].name for m in matches}
        return Site(
            interface,
            self.manifest.key(interface),
            call,
            self.flow.scope(call).name,
            signature,
            bind(call, signature),
            factory.rpartition(".")[2],
            on_object or indirect,
            self._home(interface, factory, values),
            note,
            self._held_homes(values) if indirect else None,
        )

    def _home(self, interface: Interface, factory: str, values: frozenset[Value]) -> str:
        """The module that the script takes a function or class from; "" for methods and its own definitions."""
        references = sorted(
            v.dotted for v in values if isinstance(v, Ref) and "." in v.dotted and self.matcher.match(v)
        )
        if any(isinstance(v, Local) for v in values) or (interface.kind == "method" and not references):
            return ""
        if not references:
            return interface.module
        owner = references[0].rpartition(".")[0]
        is_member = interface.kind == "method" or (factory and interface.named_by(owner))
        return owner.rpartition(".")[0] if is_member else owner

    def _held_homes(self, values: frozenset[Value]) -> dict[str, str]:
        """Each interface that a container or a partial may hold, and where it lives."""
        found: dict[str, str] = {}
        for value in values:
            inner = value.of if isinstance(value, Partial) else value
            match = self.matcher.match(inner)
            if match is not None:
                found[match[0].name] = self._home(match[0], "", frozenset([inner]))
        return dict(sorted(found.items()))

    def _by_own_name(self, function: ast.expr, interface: Interface) -> bool:
        """Whether a call uses the very name under which the script defines the interface."""
        if not isinstance(function, ast.Name) or function.id != interface.member:
            return False
        home = self.flow.scope(function).home(function.id)
        return (interface.name, home) in self.own_scopes

    def _near_miss(self, call: ast.Call, values: frozenset[Value], text: str) -> Unresolved | None:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in self.members:
            for value in values:
                owner, _, _ = value.dotted.rpartition(".") if isinstance(value, Ref) else ("", "", "")
                if owner and self.matcher.class_of(Ref(owner))[0]:
                    return Unresolved(call.lineno, text, "called on the class itself, not on an object")
            made = sorted(
                _describe(v.instance) for v in values if isinstance(v, Member) and isinstance(v.instance, Made)
            )
            if not values or made:
                is_what = f"it is {made[0]}, whose class is not known" if made else "nothing tells what it is"
                return Unresolved(call.lineno, text, f"a method of {ast.unparse(function.value)}: {is_what}")
        bare = {i.name for i in self.matcher.functions}
        unknown = not values or any(isinstance(v, Member) and isinstance(v.instance, Made) for v in values)
        if unknown and called_name(call) in bare:
            return Unresolved(call.lineno, text, f"nothing tells what {text} is")
        return None

    def _needs_object(self, call: ast.Call, interface: Interface, instances: list[Instance | None]) -> bool:
        """Whether the call must name its object: only one made once, and held by a plain name, can be left to `exe`."""
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        if interface.member == "__call__":
            receiver = call.func
        if not _is_plain(receiver):
            return True
        sites = {i.site for i in instances if i is not None}
        created = self.created.get(interface.owner, [])
        if len(created) != 1 or sites != {created[0]} or any(i.derived for i in instances if i is not None):
            return True
        return self._repeats(created[0], set())

    def _repeats(self, node: ast.AST, seen: set[ast.AST]) -> bool:
        """Whether a node may run more than once in a run of the script."""
        scopes = self.flow.scopes
        if node in seen or scopes.in_loop(node):
            return True
        function = scopes.of_node[node].node
        if isinstance(function, ast.Module):
            return False
        if isinstance(function, ast.ClassDef):
            return self._repeats(function, seen | {node})
        runs: list[ast.AST] = list(self.flow.callers(function))
        owner = scopes.parent[function]
        if isinstance(owner, ast.ClassDef):
            runs = [r for r in runs if not scopes.inside(r, owner)] or runs
            made = [c for c in self.nodes if isinstance(c, ast.Call) and Local(owner) in self.flow.values(c.func)]
            if len(made) > 1 or any(self._repeats(m, seen | {node}) for m in made):
                return True
        return len(runs) > 1 or any(self._repeats(r, seen | {node}) for r in runs)

    def _internal(self, call: ast.Call, interface: Interface) -> bool:
        """Whether a call stands inside the interface's own definition, on the model's side of the border."""
        around = self.flow.scopes.around(call)
        return any(o.module == interface.module and o.owner == interface.owner for o in self._defined_by(around))

    def _is_internal(self, node: ast.AST) -> bool:
        return any(self._defined_by(self.flow.scopes.around(node)))

    def _defined_by(self, nodes: Iterable[ast.AST]) -> Iterator[Interface]:
        return (own for node in nodes for own in self.defined.get(node, ()))


def _is_command(node: ast.AST) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in getattr(node, "decorator_list", [])]
    return any(isinstance(d, ast.Attribute) and d.attr in ("command", "group") for d in decorators)


def _is_plain(receiver: ast.expr) -> bool:
    """A name or a chain of attributes, which evaluating does nothing."""
    while isinstance(receiver, ast.Attribute):
        receiver = receiver.value
    return isinstance(receiver, ast.Name)


def _describe(value: Value) -> str:
    if isinstance(value, Ref):
        return value.dotted
    if isinstance(value, Local):
        return f"{getattr(value.node, 'name', 'a lambda')} (line {getattr(value.node, 'lineno', 0)})"
    if isinstance(value, Made):
        return f"what {value.by} gives"
    if isinstance(value, Partial):
        return f"a partial of {_describe(value.of)}"
    if isinstance(value, Member):
        return f"{value.name} of {_describe(value.instance)}"
    return "an object of " + _describe(value.of) if isinstance(value, Instance) else "a container"
