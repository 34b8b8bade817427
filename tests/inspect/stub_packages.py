"""Run a generated script with stubs for every package, up to its first call of an interface.

`python stub_packages.py SCRIPT NAME`: NAME.json, the project's interface file, lies in the current folder. The modules
that it names have the names that the script takes from nowhere else, as the project's own modules would.
"""

import ast
import builtins
import dis
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types
from pathlib import Path

OWN = {"genwright", "Inspection"} | set(sys.stdlib_module_names)


class Anything:
    """An object that takes part in everything: called, iterated, derived from, awaited, compared."""

    def __init__(self, *arguments, **keywords) -> None: ...

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(name)

    def __call__(self, *arguments, **keywords):
        # A decorator gives its function back.
        decorates = len(arguments) == 1 and not keywords and isinstance(arguments[0], types.FunctionType | type)
        return arguments[0] if decorates else Anything()

    def __iter__(self):
        """One item in a loop; as many as there are targets where it is unpacked."""
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        unpacked = dis.opname[code[at]] == "UNPACK_SEQUENCE"
        return iter([Anything() for _ in range(code[at + 1] if unpacked else 1)])

    def __next__(self):
        return Anything()

    def __await__(self):
        yield from ()
        return Anything()

    async def __aiter__(self):
        yield Anything()

    def __mro_entries__(self, bases: tuple) -> tuple:
        return (Base,)

    def __instancecheck__(self, instance) -> bool:
        return False

    def __exit__(self, *error) -> None: ...

    async def __aexit__(self, *error) -> None: ...

    async def __aenter__(self):
        return Anything()

    def __hash__(self) -> int:
        return id(self)

    def __fspath__(self) -> str:
        return "stub"

    __str__ = __repr__ = __fspath__

    def __format__(self, how: str) -> str:
        return "stub"


def _give(value):
    return lambda self, *arguments: value() if callable(value) else value


for _names, _value in {
    "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift": Anything,
    "radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor neg pos abs invert round": Anything,
    "getitem enter reversed": Anything,
    "lt gt le ge contains setitem delitem": False,
    "int index len": 1,
    "float": 1.0,
    "bool": True,
}.items():
    for _name in _names.split():
        setattr(Anything, f"__{_name}__", _give(_value))


class Base(Anything):
    """What a script's class derives from when it derives from a stub."""

    def __init_subclass__(cls, **keywords) -> None: ...


def stub(name: str):
    """What a stub has under a name; errors must be real ones, since `except` asks for them."""
    return type(name, (Exception,), {}) if name.endswith(("Error", "Exception")) else Anything()


class StubModule(types.ModuleType):
    __path__ = ()
    __version__ = "2.0.0"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, stub(name))
        return vars(self)[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        known = name.partition(".")[0] in OWN
        return None if known else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module) -> None: ...


def undefined(source: str) -> set[str]:
    """The names that a script uses and that neither it nor Python defines."""
    tree = ast.parse(source)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {a.asname or a.name.partition(".")[0] for a in node.names}
        bound |= {getattr(node, "name", None) or ""}
    return used - bound - set(dir(builtins)) - {"__file__", "__name__", ""}


def main(script: str, name: str) -> None:
    from genwright.inspect.analysis.manifest import load_manifest
    from genwright.inspect.executor import Executor
    from genwright.inspect.run.call_records import Finish  # all of ours is imported before the stubs are  # noqa: F401

    missing = undefined(Path(script).read_text(encoding="utf-8")) - {"sys", "os"}
    modules = {i.module for i in load_manifest(Path(f"{name}.json")).interfaces}
    sys.meta_path.insert(0, Finder())
    for module in filter(None, modules):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            made = importlib.import_module(module)
            for each in missing:
                setattr(made, each, getattr(made, each))

    def first_call(self, event, called, target, *arguments, **keywords):
        print(f"reached {event} {called}", flush=True)
        os._exit(0)

    Executor._call = first_call
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    sys.exit("the script ended without a call")


if __name__ == "__main__":
    main(*sys.argv[1:])
