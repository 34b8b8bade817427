"""Change a module right after it has been imported, whoever imports it."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

Action = Callable[[Any], None]


def after_import(actions: dict[str, Action]) -> None:
    """Apply each action to the module of its name: now if it is there already, else when it is imported."""
    for name in set(actions) & set(sys.modules):
        actions[name](sys.modules[name])
    sys.meta_path.insert(0, _Finder(actions))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions
        self._searched: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._actions or name in self._searched:
            return None
        self._searched.add(name)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        finally:
            self._searched.discard(name)
        if spec is None or spec.loader is None or isinstance(spec.loader, type):
            return None
        spec.loader = _Loader(spec.loader, self._actions[name])
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, which may serve other modules too, and then changes it."""

    def __init__(self, loader: Any, action: Action) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
