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
        execute, action = spec.loader.exec_module, self._actions[name]

        def execute_then_act(module: types.ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec
