"""Modules that stand in for a model's package where it cannot be imported."""

import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from genwright.inspect.replay.stand_in import StandIn


def stand_in_for(
    homes: Iterable[tuple[str, str]],
    signatures: Mapping[str, inspect.Signature] | None = None,
    on_class: Collection[str] = (),
) -> None:
    """From here on the modules of interfaces (name and module) can be imported even if they are not there.

    `on_class` are the methods that need no object.
    """
    sys.meta_path.append(_Finder(list(homes), signatures or {}, on_class))


def class_of(homes: Iterable[tuple[str, str]], name: str) -> Any:
    """The class of an interface: the script's own, or that of a module; None if there is none."""
    for module in ("__main__", *(m for n, m in homes if n == name and m)):
        try:
            found = getattr(importlib.import_module(module), name, None)
        except Exception:  # a module that fails to be imported
            continue
        if isinstance(found, type):
            return found
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that a module that is there is itself."""

    def __init__(
        self, homes: list[tuple[str, str]], signatures: Mapping[str, inspect.Signature], on_class: Collection[str]
    ) -> None:
        self._homes, self._signatures, self._on_class = homes, signatures, on_class
        self._tops = {module.partition(".")[0] for _, module in homes if module}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._tops:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        # A package re-exports what its modules define.
        inside = {n: m for n, m in self._homes if m == module.__name__ or m.startswith(f"{module.__name__}.")}
        classes = {n.partition(".")[0] for n in inside if "." in n or n[:1].isupper()}
        for name in classes:
            members = {n.partition(".")[2]: self._method(n, inside[n]) for n in inside if n.startswith(f"{name}.")}
            where = {"__module__": inside.get(name) or module.__name__, "__qualname__": name}
            where["__init__"] = self._function(name, inside.get(name, ""), ["self"], gives=None)
            setattr(module, name, type(name, (StandIn,), where | members))
        for name in inside.keys() - classes:
            if "." not in name:
                setattr(module, name, self._function(name, inside[name], [], gives=f"{name}()"))
        vars(module)["__all__"] = [n for n in vars(module) if not n.startswith("_")]

    def _method(self, name: str, module: str) -> Any:
        if name in self._on_class:
            return staticmethod(self._function(name, module, [], gives=f"{name}()"))
        return self._function(name, module, ["self"], gives=f"{name}()")

    def _function(self, name: str, module: str, first: list[str], gives: str | None) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            return StandIn(gives) if gives is not None else None

        function.__name__, function.__qualname__, function.__module__ = name.rpartition(".")[2], name, module
        signature = self._signatures.get(name)
        if signature is not None and not set(first) & set(signature.parameters):
            bound = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in first]
            function.__signature__ = inspect.Signature([*bound, *signature.parameters.values()])  # type: ignore[attr-defined]
        return function


class _StandInModule(types.ModuleType):
    __path__ = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")
