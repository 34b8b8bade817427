"""Run a generated script with stubs for every package, up to its first call of an interface.

`python stub_packages.py SCRIPT NAME`: NAME.json, the project's interface file, lies in the current folder. The modules
that it names have the names that the script takes from nowhere else, as the project's own modules would.
"""

import builtins
import dis
import glob
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import os
import runpy
import shutil
import symtable
import sys
import types
from importlib.resources.abc import TraversableResources
from pathlib import Path

OWN = {"genwright", "Inspection", "setuptools", "_distutils_hack"} | set(sys.stdlib_module_names)


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

    def keys(self) -> list[str]:
        return []

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

    def __eq__(self, other) -> bool:
        return isinstance(other, Anything)

    def __hash__(self) -> int:
        return 1

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
    "lt gt contains setitem delitem": False,
    "le ge": True,
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
    __file__ = "stub.py"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, stub(name))
        return vars(self)[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for the packages named, or for every package but our own; those written in a folder come first."""

    def __init__(self, names: frozenset[str] = frozenset(), folder: str = "") -> None:
        self.names, self.folder = names, folder

    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top not in self.names if self.names else top in OWN:
            return None
        written = importlib.machinery.PathFinder.find_spec(name, path or [self.folder]) if self.folder else None
        if written is not None:
            return written
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [os.getcwd()]
        return spec

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module) -> None: ...

    def get_resource_reader(self, name: str):
        return Resources()


class Resources(TraversableResources):
    def files(self) -> Path:
        return Path.cwd()


def stub_files(script: str) -> None:
    """A project's own files and programs are stubs too: what the script looks for is there, and is empty."""
    opened = builtins.open

    def asked() -> bool:
        return sys._getframe(2).f_code.co_filename == script

    def open_stub(file, mode="r", *arguments, **keywords):
        if isinstance(file, Anything):
            return io.BytesIO(b"{}") if "b" in mode else io.StringIO("{}")
        try:
            return opened(file, mode, *arguments, **keywords)
        except FileNotFoundError:
            if not asked() or set(mode) & set("wax+"):
                raise
            return io.BytesIO(b"{}") if "b" in mode else io.StringIO("{}")

    def there(exists):
        return lambda path, *arguments, **keywords: (asked() and path != "") or exists(path, *arguments, **keywords)

    builtins.open = open_stub
    for owner, name in ((os.path, "exists"), (os.path, "isfile"), (Path, "exists"), (Path, "is_file")):
        setattr(owner, name, there(getattr(owner, name)))
    found = glob.glob
    glob.glob = lambda pattern, **keywords: found(pattern, **keywords) or (["stub.png"] if asked() else [])
    json.JSONEncoder.default = lambda self, value: str(value)
    importlib.metadata.version = lambda name: "1.0"
    Path.stat = lambda path, **keywords: os.stat(path if os.access(path, os.F_OK) or not asked() else ".", **keywords)
    os.rename = lambda *arguments: None
    shutil.which = lambda name, *arguments: f"/stub/{name}"


def undefined(source: str) -> set[str]:
    """The global names that a script uses and that neither its top level nor Python defines."""
    top = symtable.symtable(source, "script", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used, pending = set(), [top]
    while pending:
        table = pending.pop()
        pending += table.get_children()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or table is top)}
        bound |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    return used - bound - set(dir(builtins)) - {"__file__", "__name__"}


def main(script: str, name: str) -> None:
    from genwright.inspect.analysis.manifest import load_manifest
    from genwright.inspect.executor import Executor
    from genwright.inspect.records.call_records import Finish  # all of ours is imported before the stubs are  # noqa: F401

    missing = undefined(Path(script).read_text(encoding="utf-8")) - {"sys", "os"}
    modules = {i.module for i in load_manifest(Path(f"{name}.json")).interfaces}
    sys.meta_path.insert(0, Finder())
    for module in filter(None, modules):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            made = importlib.import_module(module)
            for each in missing:
                setattr(made, each, getattr(made, each))

    def first_call(self, event, called, target, *arguments, **keywords):
        print(f"\nreached {event} {called}", flush=True)
        os._exit(0)

    Executor.call = first_call
    stub_files(script)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    sys.exit("the script ended without a call")


if __name__ == "__main__":
    main(*sys.argv[1:])
