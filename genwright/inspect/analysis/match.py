"""Which interface of a manifest the calling of a value crosses."""

import ast
from functools import cached_property

from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.sites import Definition
from genwright.inspect.analysis.values import Instance, Local, Member, Partial, Ref, Value

Match = tuple[Interface, str, Instance | None]


class Matcher:
    """Compares the values of a script's expressions with a manifest; `module` is the script's own dotted name."""

    def __init__(
        self, tree: ast.Module, manifest: Manifest, module: str, package: str, texts: frozenset[ast.Constant]
    ) -> None:
        self.manifest, self.module = manifest, module
        self.functions = manifest.functions()
        self.classes = manifest.classes()
        self.flow = Flow(tree, package, self._makes, texts)

    def _makes(self, reference: Ref) -> Ref | None:
        """The class, by its canonical name, that calling a reference makes an object of."""
        interface, _ = self.class_of(reference)
        return Ref(f"{interface.module}.{interface.name}") if interface else None

    def class_of(self, value: Value) -> tuple[Interface | None, str]:
        """The interface class that a value constructs, and the factory it does so by."""
        for interface in self.classes:
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
            for interface in self.functions:
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
        own = [*self.functions, *self.classes]
        return [
            (interface, node)
            for node in self.flow.nodes
            if isinstance(node, Definition)
            for interface in own
            if self._is_own(interface, node)
        ]
