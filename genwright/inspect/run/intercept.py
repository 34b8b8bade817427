"""Intercept: the original file runs as it is, and its interfaces record the calls that cross the border."""

import ast
import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.executor import Executor
from genwright.inspect.records.plan_file import Plan, Target
from genwright.inspect.surroundings.import_hooks import after_import
from genwright.inspect.wrappers import CODE, MARK, wrap

_DECORATOR = "__genwright_record__"


class Interception:
    """Wraps the plan's interfaces wherever they are imported, and those that the script defines."""

    def __init__(self, plan: Plan, executor: Executor) -> None:
        self._plan, self._executor = plan, executor

    def install(self) -> None:
        """Wrap each interface right after its module has been imported, whoever imports it."""
        actions: dict[str, list[Callable[[Any], None]]] = {}
        for target in self._plan.interfaces:
            for home in target.homes:
                actions.setdefault(home, []).append(functools.partial(self._wrap_in, target=target))
            for factory, home in target.factories.items():
                act = functools.partial(self._wrap_factory, owner=target.name, factory=factory)
                actions.setdefault(home, []).append(act)
        after_import({home: functools.partial(_each, actions=acts) for home, acts in actions.items()})
        after_import({"torch._dynamo.trace_rules": _not_compiled, "torch._dynamo.eval_frame": _not_first})

    def code(self, source: bytes) -> types.CodeType:
        """The script's code under the original's name; what it defines of the interfaces is wrapped there."""
        tree = ast.parse(source, self._plan.script)
        ranges = {tuple(r) for ranges in self._plan.defined.values() for r in ranges}
        for node in ast.walk(tree) if ranges else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if (node.lineno, node.end_lineno) in ranges:
                # The outermost decorator, on the line of the one that was.
                line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
                name = ast.Name(_DECORATOR, ast.Load(), lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
                node.decorator_list.insert(0, name)
        return compile(tree, self._plan.script, "exec", dont_inherit=True)

    def names(self) -> dict[str, Any]:
        """What the script's code needs beside its own names."""
        return {_DECORATOR: self._defined} if self._plan.defined else {}

    def _defined(self, made: Any) -> Any:
        name = getattr(made, "__name__", None) or getattr(getattr(made, "callback", None), "__name__", "")
        for target in self._plan.interfaces:
            if target.kind == "function" and target.name == name:
                if self._executor.record_command(name, made):
                    return made
                return self._function(made, target.name, "run", "")
            if isinstance(made, type) and target.name.partition(".")[0] == name:
                self._wrap_class(made, target, "")
        return made

    def _wrap_in(self, module: Any, target: Target) -> None:
        """Wrap what a module has of an interface, and the same object in the module that defines it."""
        owner = target.name.partition(".")[0]
        held = getattr(module, owner, None)
        package = _place(module)
        if isinstance(held, type) and target.kind != "function":
            self._wrap_class(held, target, package)
        elif target.kind != "method" and callable(held) and not isinstance(held, type):
            # A function under a class's name makes objects whose class nothing told.
            event = "create" if target.kind == "class" else "run"
            if event == "run" and self._executor.record_command(target.name, held):
                return
            wrapped = self._function(held, target.name, event, package)
            setattr(module, owner, wrapped)
            origin = sys.modules.get(getattr(held, "__module__", None) or "")
            if origin is not None and vars(origin).get(owner) is held:
                setattr(origin, owner, wrapped)

    def _wrap_factory(self, module: Any, owner: str, factory: str) -> None:
        """A factory is a method of the class, or a function of the module; `load[0]` gives the object among others."""
        factory, _, item = factory.partition("[")
        if item and callable(getattr(module, factory, None)):
            setattr(module, factory, self._giver(getattr(module, factory), owner, ast.literal_eval(item[:-1])))
            return
        kind, package = getattr(module, owner, None), _place(module)
        if isinstance(kind, type) and hasattr(kind, factory):
            setattr(kind, factory, self._on_class(_static(kind, factory), owner, "create", package))
        if callable(getattr(module, factory, None)):
            setattr(module, factory, self._function(getattr(module, factory), owner, "create", package))

    def _wrap_class(self, kind: type, target: Target, package: str) -> None:
        """Wrap a constructor or a method in the class itself, which stays the same object."""
        member = "__init__" if target.kind == "class" else target.name.rpartition(".")[2]
        method = _static(kind, member)
        if method is None or getattr(getattr(method, "__func__", method), MARK, False):
            return
        if target.kind == "class":
            setattr(kind, member, self._constructor(kind, method, target.name, package))
            return
        if isinstance(method, classmethod | staticmethod):
            setattr(kind, member, self._on_class(method, target.name, "run", package))
        elif callable(method):
            setattr(kind, member, self._method(method, target.name, package))

    def _on_class(self, method: Any, name: str, event: str, package: str) -> Any:
        """A static or class method, wrapped."""
        if not isinstance(method, classmethod):
            return staticmethod(self._function(getattr(method, "__func__", method), name, event, package))
        original = method.__func__
        if getattr(original, MARK, False):
            return method

        def record(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self._record(types.MethodType(original, cls), name, event, package, args, kwargs)

        return classmethod(wrap(original, record))

    def _function(self, original: Any, name: str, event: str, package: str) -> Any:
        if getattr(original, MARK, False):
            return original

        def record(*args: Any, **kwargs: Any) -> Any:
            return self._record(original, name, event, package, args, kwargs)

        return wrap(original, record)

    def _record(self, original: Any, name: str, event: str, package: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        executor = self._executor
        if not executor.sites.crosses(name.partition(".")[0], package):
            return original(*args, **kwargs)
        result = executor.call(event, name, original, args, kwargs)
        if event == "create":
            executor.keep(name, result)
            self._adopt(result, name)
        return result

    def _giver(self, original: Any, owner: str, item: Any) -> Any:
        """A function that gives several things, of which one is a model; its own calls are not recorded."""

        def adopt(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with contextlib.suppress(LookupError, TypeError):
                if self._executor.stand_in is None or isinstance(result, tuple | list | dict):
                    self._adopt(result[item], owner)
            return result

        return wrap(original, adopt)

    def _adopt(self, made: Any, owner: str) -> None:
        """Wrap the interfaces of an object in its class, which may be another one than the manifest names."""
        kind = type(made)
        package = _place(sys.modules.get(kind.__module__))
        for target in self._plan.interfaces:
            if target.kind != "method" or target.name.rpartition(".")[0] != owner:
                continue
            with contextlib.suppress(TypeError):  # a class of an extension cannot be changed
                if self._executor.stand_in is not None and not hasattr(kind, target.name.rpartition(".")[2]):
                    setattr(kind, target.name.rpartition(".")[2], _answered)
                self._wrap_class(kind, target, package)

    def _method(self, original: Any, name: str, package: str) -> Any:
        executor, owner = self._executor, name.partition(".")[0]

        def record(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not executor.sites.crosses(owner, package):
                return original(self, *args, **kwargs)
            return executor.call("run", name, types.MethodType(original, self), args, kwargs, self)

        return wrap(original, record)

    def _constructor(self, kind: type, original: Any, name: str, package: str) -> Any:
        executor, owner = self._executor, name.partition(".")[0]

        def record(self: Any, /, *args: Any, **kwargs: Any) -> None:
            # A derived class is another interface, or none.
            if type(self) is not kind or not executor.sites.crosses(owner, package):
                original(self, *args, **kwargs)
                return
            made = executor.call("create", name, types.MethodType(original, self), args, kwargs, made=self)
            if executor.stand_in is not None and isinstance(made, kind):
                self.__class__ = type(made)
            executor.keep(name, self)

        return wrap(original, record)


def _answered(self: Any, *args: Any, **kwargs: Any) -> None:
    """A method of what stands in for a model: a record answers its calls."""


def _not_compiled(module: Any) -> None:
    """Leave recording out of what torch compiles; `wrappers.py` must be compiled."""
    for name in ("executor", "records", "replay", "run", "surroundings"):
        module.add(f"genwright.inspect.{name}")


def _not_first(module: Any) -> None:
    """Let a wrapped function that is compiled record its calls, and compile the one inside."""
    module.skip_code(CODE)


def _each(module: Any, actions: list[Callable[[Any], None]]) -> None:
    for act in actions:
        act(module)


def _static(kind: type, name: str) -> Any:
    """A member as a class or one of its bases has it, not bound."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _place(module: Any) -> str:
    """Where the files of a module's top package lie; the file itself of a module without a package."""
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    depth = module.__name__.count(".") + (1 if hasattr(module, "__path__") else 0)
    return f"{Path(file).parents[depth - 1]}{os.sep}" if depth else str(file)
