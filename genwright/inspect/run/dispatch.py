"""What an interface's name means in a running script: a function, a class, or a method of a created object."""

import contextlib
import inspect
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from genwright.errors import UserError
from genwright.inspect.records.plan_file import current_plan

MANIFESTS = Path(__file__).parents[1] / "manifests"


class Dispatch:
    """The interfaces of one executor by name, and the objects that were created of its classes, the last one last."""

    def __init__(self, project: str, find_manifest: Callable[[str, list[Path]], Any]) -> None:
        self.project, self._find_manifest = project, find_manifest
        self.targets: dict[str, Callable[[], Any]] = {}
        self.homes: dict[str, str] = {}
        self.files: dict[str, tuple[str, ...]] = {}
        self.is_set_up = False
        self._objects: dict[str, Callable[[], Any]] = {}
        # A script may change its folder and its argv later on.
        self._places = places()

    def keep(self, name: str, made: Any) -> None:
        self._objects.pop(name, None)
        self._objects[name] = lambda: made
        if self.is_set_up:
            # A rewritten script holds its objects itself, and decides how long they live.
            with contextlib.suppress(TypeError):
                self._objects[name] = weakref.ref(made)

    def held(self) -> dict[str, Any]:
        """The objects that are alive, by class, the last created first."""
        alive = {name: get() for name, get in reversed(self._objects.items())}
        return {name: made for name, made in alive.items() if made is not None}

    def find(self, name: str, importing: bool = True) -> tuple[str, Any, Any]:
        """An interface's full name, the object it is called on (None for a function), and what to call.

        Without `importing` nothing is looked up in the project's modules, and nothing need be there.
        """
        if "." not in name and name in self.targets:
            return name, None, self.targets[name]()
        if not importing:
            return self._find_by_name(name)
        self.read_manifest()
        if "." not in name and name in self.homes:
            return name, None, self.resolve(name)
        methods = [name] if "." in name else self._methods(name)
        if not methods:
            return self._unlisted(name)
        full = self._chosen(name, methods)
        owner, _, member = full.rpartition(".")
        held = self.held().get(owner)
        if held is not None:
            return full, held, member_of(held, member)
        on_class = self._class_method(owner, member)
        if on_class is None:
            raise UserError(f"{name!r} needs an object of {owner}, and none that was created is alive.")
        return full, None, on_class

    def _find_by_name(self, name: str) -> tuple[str, Any, Any]:
        self.read_manifest()
        methods = [name] if "." in name else self._methods(name)
        if name in self.targets or name in self.homes or not methods:
            return name, None, None
        full = self._chosen(name, methods)
        return full, self.held().get(full.rpartition(".")[0]), None

    def routine(self, held: Any) -> tuple[str, Any]:
        """The interface that a function or method is, or "", and the object that it is bound to."""
        name, owner = getattr(held, "__name__", ""), getattr(held, "__self__", None)
        if owner is None or inspect.ismodule(owner):
            known = name in self.targets or name in self.homes
            return (name if known and self.resolve(name) is held else ""), None
        kind = owner if inspect.isclass(owner) else type(owner)
        full = next((n for k in kind.__mro__ if (n := f"{k.__name__}.{name}") in self.homes), "")
        return full, owner

    def method(self, held: Any, kind: type, name: str) -> str:
        """The interface that a method of an object is: of its class or a base, of what made it, or the only such."""
        names = [f"{owner.__name__}.{name}" for owner in kind.__mro__]
        makers = [f"{owner}.{name}" for owner, made in self.held().items() if made is held]
        known = [n for n in (*names, *makers) if n in self.homes] or self._methods(name)
        return known[0] if known else names[0]

    def resolve(self, name: str) -> Any:
        """The function or class that a name means now."""
        if name in self.targets:
            return self.targets[name]()
        self.read_manifest()
        home = self.homes.get(name) or next((m for n, m in self.homes.items() if n.startswith(f"{name}.")), None)
        if home is None and not self.is_set_up:
            home = next((m for m in self._modules() if hasattr(resolve_name(m), name)), None)
        if not home:
            raise UserError(
                f"The executor {self.project!r} knows no interface {name!r}; it knows {sorted(self.homes)}."
            )
        try:
            # With a colon, because a package may have a module of the function's name.
            return resolve_name(f"{home}:{name}")
        except AttributeError as error:
            message = f"The module {home!r} has no {name!r}, which the manifest of {self.project!r} places there."
            raise UserError(message) from error

    def factory(self, owner: str, factory: str) -> Any:
        """A factory is a method of the class, or a function of the module that has the class."""
        if factory in self.targets:
            return self.targets[factory]()
        if owner in self.targets:
            return getattr(self.resolve(owner), factory)
        self.read_manifest()
        home = self.homes.get(f"{owner}.{factory}") or self.homes.get(owner)
        if not home:
            raise UserError(f"The executor {self.project!r} knows no class {owner!r}; it knows {sorted(self.homes)}.")
        module = resolve_name(home)
        return getattr(getattr(module, owner, None), factory, None) or getattr(module, factory)

    def only_class(self) -> str:
        """The class that a script means when it names none: the first one of the manifest."""
        if not self._classes():
            raise UserError(f"The manifest of {self.project!r} names no class; pass interface_class_name.")
        return self._classes()[0]

    def class_named(self, attribute: str, value: Any) -> str:
        """The class whose object a script means by an adapter's attribute."""
        names = [c.__name__ for c in type(value).__mro__]
        fitting = [c for c in self._classes() if snake_case(c) == attribute or c in names]
        return fitting[0] if fitting else self.only_class()

    def _classes(self) -> list[str]:
        self.read_manifest()
        return list(dict.fromkeys(n.partition(".")[0] for n in self.homes if "." in n or n[:1].isupper()))

    def read_manifest(self) -> None:
        """A script that sets no interfaces up gets them from NAME.toml or NAME.json beside it or in this folder."""
        if self.homes or self.is_set_up:
            return
        manifest = self._find_manifest(self.project, [*self._places, *places()])
        if manifest is not None:
            self.homes = {i.name: i.module for i in manifest.interfaces}
            self.files = {i.name: i.files for i in manifest.interfaces if i.files}

    def _methods(self, name: str) -> list[str]:
        """`generate` or `OptLM_generate` for `OptLM.generate`."""
        return [n for n in self.homes if "." in n and (n.rpartition(".")[2] == name or n.replace(".", "_") == name)]

    def _chosen(self, name: str, methods: list[str]) -> str:
        if len(methods) == 1:
            return methods[0]
        by_owner = {m.rpartition(".")[0]: m for m in methods}
        alive = [by_owner[owner] for owner in self.held() if owner in by_owner]
        if self.is_set_up or not alive:
            raise UserError(f"{name!r} may be {' or '.join(sorted(methods))}; run it by its qualified name.")
        return alive[0]

    def _class_method(self, owner: str, member: str) -> Any:
        """A method that the class itself can be asked for; None if it needs an object."""
        with contextlib.suppress(UserError, AttributeError, ImportError):
            held_by = self.resolve(owner)
            if not isinstance(inspect.getattr_static(held_by, member, None), classmethod | staticmethod):
                return None
            return getattr(held_by, member)
        return None

    def _unlisted(self, name: str) -> tuple[str, Any, Any]:
        """A generated script may run what no manifest lists: a method of its objects, or a function of its modules."""
        for owner, held in self.held().items() if not self.is_set_up else ():
            member = name.removeprefix(f"{owner}_")
            if hasattr(held, member):
                return f"{owner}.{member}", held, member_of(held, member)
        for owner in dict.fromkeys(n.partition(".")[0] for n in self.homes if not self.is_set_up):
            on_class = self._class_method(owner, name.removeprefix(f"{owner}_"))
            if on_class is not None:
                return f"{owner}.{name}", None, on_class
        return name, None, self.resolve(name)

    def _modules(self) -> list[str]:
        return list(dict.fromkeys(m for m in self.homes.values() if m))


def places() -> list[Path]:
    """Where a project's manifest may lie: beside the scenario, in this folder, beside the script, or with us."""
    plan = current_plan()
    given = [Path(folder) for folder in plan.folders] if plan is not None else []
    return [*given, Path.cwd(), Path(sys.argv[0] or ".").absolute().parent, MANIFESTS]


def member_of(held: Any, member: str) -> Any:
    """A method of an object; the object itself is what `__call__` runs, which may be a torch module."""
    return held if member == "__call__" else getattr(held, member)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
