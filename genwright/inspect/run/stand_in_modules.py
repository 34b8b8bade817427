"""Modules that stand in for a model's package where it cannot be imported."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from genwright.inspect.run.stand_in import StandIn


def stand_in_for(homes: Mapping[str, str]) -> None:
    """From here on the modules of interfaces (name: module) can be imported even if they are not there."""
    sys.meta_path.append(_Finder(homes))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that a module that is there is itself."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes
        self._tops = {module.partition(".")[0] for module in homes.values() if module}

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
        inside = {n: m for n, m in self._homes.items() if m == module.__name__ or m.startswith(f"{module.__name__}.")}
        classes = {n.partition(".")[0] for n in inside if "." in n or n[:1].isupper()}
        for name in classes:
            members = {n.partition(".")[2]: _function(n, inside[n]) for n in inside if n.startswith(f"{name}.")}
            where = {"__module__": inside.get(name) or module.__name__, "__qualname__": name, "__init__": _accept}
            setattr(module, name, type(name, (StandIn,), where | members))
        for name in inside.keys() - classes:
            if "." not in name:
                setattr(module, name, _function(name, inside[name]))
        vars(module)["__all__"] = [n for n in vars(module) if not n.startswith("_")]


class _StandInModule(types.ModuleType):
    __path__ = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


def _accept(self: Any, *args: Any, **kwargs: Any) -> None: ...


def _function(name: str, module: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        return StandIn(f"{name}()")

    function.__name__, function.__qualname__, function.__module__ = name.rpartition(".")[2], name, module
    return function
