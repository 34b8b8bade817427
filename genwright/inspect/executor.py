"""The executor: what a rewritten script calls instead of the model's interfaces.

It does not import torch, so a rewritten script needs only this package and the repository itself.
"""

import functools
import inspect
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.run.call_records import Finish
from genwright.inspect.run.dispatch import Dispatch, member_of
from genwright.inspect.run.gradio_pages import GradioPages
from genwright.inspect.run.keyboard import Keyboard
from genwright.inspect.run.records import Record, RecordFolder, RecordPath, describe_file, stamp
from genwright.inspect.run.servers import Servers
from genwright.inspect.run.streamlit_pages import StreamlitPages
from genwright.inspect.run.streams import RecordedAsyncGenerator, RecordedGenerator
from genwright.inspect.run.summary import summarise
from genwright.inspect.run.visitor import Visitor
from genwright.inspect.run.windows import Windows


class Executor:
    """Runs interfaces by name and writes one record per call; `now_record_path` is the run's folder."""

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label
        self._folder = RecordFolder(name, label)
        self.now_record_path = RecordPath(f"{self._folder.path}/")
        self._names = Dispatch(name, _find_manifest)
        self._numbers: dict[int, int] = {}
        self._last: tuple[str, Any] = ("", None)
        self._next = itertools.count(1)  # atomic, for scripts with threads
        self._answers: list[str] = []
        self._ui: dict[str, Any] = {}
        self._keyboard = Keyboard(self._answered)
        self._folder.write_run(self._run())

    def setup(
        self,
        interfaces: dict[str, str] | None = None,
        files: dict[str, list[str]] | None = None,
        answers: list[str] | None = None,
        overrides: dict[str, Any] | None = None,
        scenario: dict[str, Any] | None = None,
    ) -> None:
        """Tell where each interface lives (name: module), which arguments are files, and what the scenario gives."""
        self._names.is_set_up = True
        self._names.homes |= interfaces or {}
        self._names.files |= {name: tuple(arguments) for name, arguments in (files or {}).items()}
        self._answers = list(answers or [])
        self._keyboard.give(self._answers)
        self._ui = (scenario or {}).get("ui", {})
        self._folder.write_run(self._run(overrides, scenario))

    def _run(self, overrides: dict[str, Any] | None = None, scenario: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "script": sys.argv[0] if sys.argv else "",
            "argv": sys.argv[1:],
            "python": sys.version.split()[0],
            "interfaces": self._names.homes,
            "answers": self._answers,
            "set": overrides or {},
            "scenario": scenario or {},
        }

    def register(self, target: Any) -> Any:
        """Make a function or class of the script itself an interface; a global is looked up anew at each call."""
        callback = getattr(target, "callback", None)
        name = getattr(target, "__name__", None) or getattr(callback, "__name__", None)
        if name is None:
            raise UserError(f"{target!r} has no name to be registered under.")
        names = sys._getframe(1).f_globals
        if hasattr(target, "callback") and hasattr(target, "main") and callback is not None:
            # A click command parses the command line and then calls its callback: that call is the crossing.
            target.callback = lambda *args, **kwargs: self._call("run", name, callback, args, kwargs)
            self._names.targets[name] = lambda: _Unrecorded(target)
        elif names.get(name) is target:
            self._names.targets[name] = lambda: names[name]
        else:
            self._names.targets[name] = lambda: target
        return target

    def run(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call an interface: a function, or a method of the object last created for its class."""
        full, held, target = self._names.find(name)
        return self._call("run", full, target, args, kwargs, self._number(held) if held is not None else None)

    @property
    def adapter(self) -> Any:
        """The objects that were created and the last result, as generated scripts ask for them."""
        from genwright.inspect.run.adapters import ExecutionResult, ManifestAdapter

        adapter = ManifestAdapter(self._names)
        name, returned = self._last
        adapter.result = ExecutionResult(name, bool(name), interface_return=returned)
        return adapter

    def on(self, held: Any, /) -> "_On":
        """Name the object that the next `run` is for."""
        return _On(self, held)

    def create_interface_objects(
        self, /, *args: Any, interface_class_name: str = "", interface_factory: str = "", **kwargs: Any
    ) -> Any:
        """Construct an interface's object, by its class or by a factory of the class or beside it."""
        name = interface_class_name or self._names.only_class()
        maker = self._names.factory(name, interface_factory) if interface_factory else self._names.resolve(name)
        made = self._call("create", name, maker, args, kwargs)
        if inspect.iscoroutine(made):
            return self._later(made, name)
        return self._keep(name, made)

    def unattended(self) -> None:
        """From here on nobody is needed: not at the keyboard, nor to close windows or visit pages and servers."""
        self._keyboard.take()
        Windows(self._folder.path / "windows", self._shown).take()
        visitor = Visitor(self._ui.get("handler", []), self._ui.get("arguments", {}), self._handled)
        Servers(visitor, self._served).take()
        GradioPages(visitor, self._served).take()
        StreamlitPages(visitor, self._served).take()

    def input(self, prompt: object = "", /) -> str:
        """Answer as the scenario says; past its answers the input ends, and asking on ends the run."""
        return self._keyboard.input(prompt)

    def _answered(self, prompt: str, answer: str | None) -> None:
        event = "answer" if answer is not None else "end-of-answers"
        self._folder.write(Record(next(self._next), event, "input", [prompt], {}, status="returned", result=answer))

    def _shown(self, name: str, values: list[Any], picture: Path | None) -> None:
        record = Record(next(self._next), "window", name, [summarise(v) for v in values], {}, status="returned")
        record.files = [describe_file(picture, "window", True)] if picture else []
        self._folder.write(record)

    def _served(self, name: str, server: list[Any]) -> None:
        print(f"genwright: {name} would wait for visitors; it is recorded, not started.", file=sys.stderr)
        self._folder.write(Record(next(self._next), "server", name, server, {}, status="returned"))

    def _handled(self, name: str, given: dict[str, Any], result: Any, error: BaseException | None) -> None:
        told = {k: summarise(v) for k, v in given.items()}
        record = Record(next(self._next), "handler", name, [], told, status="raised" if error else "returned")
        record.result = summarise(result)
        record.exception = {"type": type(error).__name__, "message": str(error)} if error else None
        self._folder.write(record)

    def _number(self, held: Any) -> int:
        return self._numbers.setdefault(id(held), len(self._numbers) + 1)

    def _keep(self, name: str, made: Any) -> Any:
        self._numbers[id(made)] = len(self._numbers) + 1
        self._names.keep(name, made)
        return made

    async def _later(self, coroutine: Any, name: str) -> Any:
        return self._keep(name, await coroutine)

    def _on(self, held: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        target = member_of(held, name.rpartition(".")[2])
        return self._call("run", name, target, args, kwargs, self._number(held))

    def _call(
        self, event: str, name: str, target: Any, args: tuple, kwargs: dict[str, Any], number: int | None = None
    ) -> Any:
        if isinstance(target, _Unrecorded):
            return target.target(*args, **kwargs)
        keywords = {k: summarise(v) for k, v in kwargs.items()}
        record = Record(next(self._next), event, name, [summarise(a) for a in args], keywords, number)
        finish = Finish(self._folder, record, self._paths(name, args, kwargs), Path(self.now_record_path))
        self._folder.write(record)
        try:
            result = target(*args, **kwargs)
        except BaseException as error:
            finish.failed(error)
            raise
        if inspect.iscoroutine(result):
            return finish.awaited(result)
        if inspect.isgenerator(result):
            finish.returned(result)
            return RecordedGenerator(result, finish.streamed)
        if inspect.isasyncgen(result):
            finish.returned(result)
            return RecordedAsyncGenerator(result, finish.streamed)
        finish.returned(result)
        if not self._names.is_set_up:  # a rewritten script does not ask, and its results are not kept alive
            self._last = (name, result)
        return result

    def _paths(self, name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Path]:
        """The arguments that name files: those the manifest says, and any other that names an existing one."""
        declared = self._names.files.get(name, ())
        paths: dict[str, Path] = {}
        for key, value in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
            if isinstance(value, str | os.PathLike) and len(os.fspath(value)) < 4096:
                path = Path(os.fsdecode(value))
                if key in declared or (stamp(path) is not None and path.is_file()):
                    paths[key] = path
        return paths


def _find_manifest(name: str, folders: list[Path]) -> Any:
    from genwright.inspect.run.named_manifests import find_manifest

    return find_manifest(name, folders)


class _On:
    def __init__(self, executor: Executor, held: Any) -> None:
        self._executor, self._held = executor, held

    def run(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the object's method, or what a callable holds: an interface is recorded, anything else is not."""
        held = self._held
        if name == "__call__" and isinstance(held, functools.partial):
            inner = _On(self._executor, held.func)
            return inner.run(name, *held.args, *args, **{**held.keywords, **kwargs})
        if name == "__call__" and inspect.isclass(held):
            return held(*args, **kwargs)
        if name == "__call__" and inspect.isroutine(held):
            full, owner = self._executor._names.routine(held)
            number = self._executor._number(owner) if owner is not None else None
            return self._executor._call("run", full, held, args, kwargs, number) if full else held(*args, **kwargs)
        kind = vars(super)["__thisclass__"].__get__(held).__mro__[1] if isinstance(held, super) else type(held)
        # An inherited method is the interface of the class that the manifest names.
        names = [f"{owner.__name__}.{name}" for owner in kind.__mro__]
        known = [n for n in names if n in self._executor._names.homes]
        return self._executor._on(self._held, (known or names)[0], args, kwargs)


class _Unrecorded:
    """Called through without a record of its own."""

    def __init__(self, target: Any) -> None:
        self.target = target
