"""Which interface of a manifest the calling of a value crosses."""

import ast
from collections.abc import Iterable
from functools import cached_property

from genwright.inspect.analysis.abstract_values import Instance, Local, Made, Member, Partial, Ref, Value
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.sites import Definition, Location

Match = tuple[Interface, str, Instance | None]


class Matcher:
    """Compares the values of a script's expressions with a manifest; `module` is the script's own dotted name.

    The data flow of an earlier location is used again where the manifest has the same classes.
    """

    def __init__(
        self,
        tree: ast.Module,
        manifest: Manifest,
        module: str,
        package: str,
        texts: frozenset[ast.Constant],
        earlier: Location | None = None,
    ) -> None:
        self.manifest, self.module = manifest, module
        self.functions = manifest.functions()
        self.classes = manifest.classes()
        # By the last name that a reference to them has: a class's own, or that of a factory.
        self._functions_named = _by_name((i.owner, i) for i in self.functions)
        self._classes_named = _by_name(
            (name, i) for i in self.classes for name in {i.owner, *(key.rpartition(".")[2] for key in i.factories)}
        )
        known = earlier.flow if earlier is not None and earlier.flow.tree is tree else None
        if known is not None and earlier is not None and (earlier.classes, known.texts) == (self.classes, texts):
            self.flow = known
        else:
            self.flow = Flow(tree, package, self._makes, texts, known.scopes if known else None)

    def _makes(self, reference: Ref) -> Ref | None:
        """The class, by its canonical name, that calling a reference makes an object of."""
        interface, _ = self.class_of(reference)
        return Ref(f"{interface.module}.{interface.name}") if interface else None

    def class_of(self, value: Value) -> tuple[Interface | None, str]:
        """The interface class that a value constructs, and the factory it does so by."""
        for interface in self._classes_named.get(_last_name(value), ()):
            if isinstance(value, Ref):
                if interface.named_by(value.dotted):
                    return interface, ""
                if factory := interface.factory(value.dotted):
                    return interface, factory
            elif isinstance(value, Local) and self._is_own(interface, value.node):
                return interface, ""
        return None, ""

    def _is_own(self, interface: Interface, node: ast.AST) -> bool:
        """Whether a definition of the script is the interface itself."""
        if getattr(node, "name", None) != interface.owner or isinstance(self.flow.scopes.parent[node], ast.ClassDef):
            return False
        if isinstance(node, ast.ClassDef) != (interface.kind == "class"):
            return False
        mine, theirs = f".{self.module}", f".{interface.module}"
        return not interface.module or mine.endswith(theirs) or theirs.endswith(mine)

    def _of_instance(self, instance: Instance) -> Interface | None:
        """The interface class of an object, by its class or an inherited one."""
        own, _ = self.class_of(instance.of)
        for candidate in [own, *(self.class_of(base)[0] for base in self.flow.base_of(instance.of))]:
            if candidate is not None:
                return candidate
        return None

    def match(self, value: Value) -> Match | None:
        """The interface that calling a value crosses, the factory, and the object for a method."""
        if isinstance(value, Partial):
            return self.match(value.of)
        if isinstance(value, Ref | Local):
            for interface in self._functions_named.get(_last_name(value), ()):
                if isinstance(value, Ref) and interface.named_by(value.dotted):
                    return interface, "", None
                if isinstance(value, Local) and self._is_own(interface, value.node):
                    return interface, "", None
            found, factory = self.class_of(value)
            if found:
                return found, factory, None
            return self._own_method(value) if isinstance(value, Local) else self._on_class(value)
        if isinstance(value, Member) and isinstance(value.instance, Instance):
            owner, name, instance = self._of_instance(value.instance), value.name, value.instance
        elif isinstance(value, Instance):
            owner, name, instance = self._of_instance(value), "__call__", value
        elif isinstance(value, Made) or (isinstance(value, Member) and isinstance(value.instance, Made)):
            made, name = (value.instance, value.name) if isinstance(value, Member) else (value, "__call__")
            owner = next((c for c in self.classes if getattr(made, "by", "") in c.factories), None)
            instance = Instance(Ref(owner.name if owner else ""), derived=True)
        else:
            return None
        method = self.manifest.method(owner.name, name) if owner else None
        return (method, "", instance) if method else None

    def _on_class(self, value: Ref) -> Match | None:
        """A static or class method, called on its class."""
        owner, _, last = value.dotted.rpartition(".")
        interface = self.class_of(Ref(owner))[0] if owner else None
        method = self.manifest.method(interface.name, last) if interface else None
        return (method, "", None) if method and method.on_class else None

    def _own_method(self, value: Local) -> Match | None:
        """A method of an interface class that the script itself defines."""
        if not isinstance(self.flow.scopes.parent[value.node], ast.ClassDef):
            return None
        owner = Local(self.flow.scopes.parent[value.node])
        interface, _ = self.class_of(owner)
        method = self.manifest.method(interface.name, getattr(value.node, "name", "")) if interface else None
        return (method, "", Instance(owner)) if method else None

    @cached_property
    def defined(self) -> list[tuple[Interface, Definition]]:
        """The interfaces that the script defines itself."""
        return [
            (interface, node)
            for node in self.flow.nodes
            if isinstance(node, Definition)
            for named in (self._functions_named, self._classes_named)
            for interface in named.get(node.name, ())
            if self._is_own(interface, node)
        ]


def _by_name(pairs: Iterable[tuple[str, Interface]]) -> dict[str, list[Interface]]:
    found: dict[str, list[Interface]] = {}
    for name, interface in pairs:
        found.setdefault(name, []).append(interface)
    return found


def _last_name(value: Value) -> str:
    """The name that a reference ends with, or that a definition of the script has."""
    if isinstance(value, Ref):
        return value.dotted.rpartition(".")[2]
    return getattr(value.node, "name", "") if isinstance(value, Local) else ""
