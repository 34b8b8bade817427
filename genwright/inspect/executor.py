"""The executor: what a rewritten script calls instead of the model's interfaces.

It does not import torch, so a rewritten script needs only this package and the repository itself.
"""

import functools
import inspect
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from genwright.errors import UserError
from genwright.inspect.records.call_records import Finish, Meters
from genwright.inspect.records.call_site import CallSites
from genwright.inspect.records.plan_file import Plan, lead_children_here, read_plan
from genwright.inspect.records.records import Record, RecordFolder, RecordPath, stamp
from genwright.inspect.records.run_record import begin_run, end_run_at_exit
from genwright.inspect.records.streams import recorded_stream
from genwright.inspect.records.summary import summarise
from genwright.inspect.run.argument_names import ArgumentNames
from genwright.inspect.run.call_limit import CallLimit
from genwright.inspect.run.dispatch import Dispatch, member_of
from genwright.inspect.run.spawned_rewrite import run_this_file_in_children
from genwright.inspect.surroundings.surroundings import Surroundings


class ModelStandIn(Protocol):
    """What stands in the model's place in a replayed or mocked run: recorded results, or made-up ones."""

    def answer(self, event: str, interface: str, args: tuple, kwargs: dict[str, Any], target: Any = None) -> Any:
        """The result of a call; `target` is what it would have called."""


class Executor:
    """Runs interfaces by name and writes one record per call; `now_record_path` is the run's folder.

    An interface's exception goes on to the script, or, with `failures="none"`, only into the record: the call then
    gives None, as in the research system.
    """

    def __init__(self, name: str, label: str = "pre", failures: str = "raise") -> None:
        if failures not in ("raise", "none"):
            raise UserError(f"An executor's failures are 'raise' or 'none', not {failures!r}.")
        self.name, self.label, self.failures = name, label, failures
        self.folder = RecordFolder.join_or_make(name, label)
        self.now_record_path = RecordPath(f"{self.folder.path}/")
        self.names = Dispatch(name, _find_manifest)
        self._arguments, self._meters = ArgumentNames(), Meters(self.folder.path)
        self._numbers: dict[int, int] = {}
        self._last: tuple[str, Any] = ("", None)
        self._answers: list[str] = []
        self._recorded: list[str] = []
        self._limit = CallLimit(self.folder)
        plan = None if self.folder.made else read_plan(self.folder.path)
        self.sites = plan.sites if plan is not None else CallSites()
        self._surroundings = Surroundings(self.folder, self.sites)
        self.stand_in = _stand_in(plan) if plan is not None else None
        if plan is not None:
            lead_children_here()
        self._obey(plan.scenario if plan is not None else {})
        self._run = begin_run(name, label, "rewrite") if self.folder.made else {}
        if self.folder.made:
            self._write_run()
            end_run_at_exit(self.folder, self._run)

    def setup(
        self,
        interfaces: dict[str, str] | None = None,
        files: dict[str, list[str]] | None = None,
        answers: list[str] | None = None,
        overrides: dict[str, Any] | None = None,
        scenario: dict[str, Any] | None = None,
    ) -> None:
        """Tell where each interface lives (name: module), which arguments are files, and what the scenario gives."""
        self.names.is_set_up = True
        self.names.homes |= interfaces or {}
        self.names.files |= {name: tuple(arguments) for name, arguments in (files or {}).items()}
        self._answers = list(answers or [])
        self._surroundings.keyboard.give(self._answers)
        self._obey(scenario or {})
        self._run |= {"set": overrides or {}, "scenario": scenario or {}}
        self._write_run()
        caller = sys._getframe(1)
        if caller.f_globals.get("__file__") != caller.f_code.co_filename:
            run_this_file_in_children(caller.f_code.co_filename)

    def _obey(self, scenario: dict[str, Any]) -> None:
        self._limit.most = scenario.get("limits", {}).get("calls")
        self.failures = scenario.get("failures", self.failures)
        self._ui = scenario.get("ui", {})

    def _write_run(self) -> None:
        if self.folder.made:
            self._run |= {"interfaces": self.names.homes, "answers": self._answers}
            self.folder.write_run(self._run)

    def set_record_function(self, function_names: list[str]) -> None:
        """Record only these interfaces, by their full or bare names; with an empty list all of them."""
        if not isinstance(function_names, list):
            raise TypeError("function_names must be a list")
        self._recorded = list(function_names)

    def set_now_record_path(self, path: str | os.PathLike[str]) -> None:
        """Name another folder for the files that the script writes; the records stay in the run's own."""
        self.now_record_path = RecordPath(f"{os.fspath(path).rstrip('/')}/")

    def register(self, target: Any) -> Any:
        """Make a function or class of the script itself an interface; a global is looked up anew at each call."""
        name = getattr(target, "__name__", None) or getattr(getattr(target, "callback", None), "__name__", None)
        if name is None:
            raise UserError(f"{target!r} has no name to be registered under.")
        names = sys._getframe(1).f_globals
        if self.record_command(name, target):
            self.names.targets[name] = lambda: _Unrecorded(target)
        elif names.get(name) is target:
            self.names.targets[name] = lambda: names[name]
        else:
            self.names.targets[name] = lambda: target
        return target

    def record_command(self, name: str, target: Any) -> bool:
        """A click command parses the command line and then calls its callback: that call is the crossing."""
        callback = getattr(target, "callback", None)
        if callback is None or not hasattr(target, "main"):
            return False
        target.callback = lambda *args, **kwargs: self.call("run", name, callback, args, kwargs)
        return True

    def run(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call an interface: a function, or a method of the object last created for its class."""
        full, held, target = self.names.find(name, importing=self.stand_in is None)
        return self.call("run", full, target, args, kwargs, held)

    @property
    def adapter(self) -> Any:
        """The objects that were created and the last result, as generated scripts ask for them."""
        from genwright.inspect.run.adapters import ExecutionResult, ManifestAdapter

        adapter = ManifestAdapter(self.names)
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
        name = interface_class_name or self.names.only_class()
        maker: Any = None
        if self.stand_in is None:
            maker = self.names.factory(name, interface_factory) if interface_factory else self.names.resolve(name)
        made = self.call("create", name, maker, args, kwargs)
        if inspect.iscoroutine(made):
            return self._later(made, name)
        return self.keep(name, made)

    def unattended(self) -> None:
        """From here on nobody is needed: not at the keyboard, nor to close windows or visit pages and servers."""
        self._surroundings.install(self._ui)

    def input(self, prompt: object = "", /) -> str:
        """Answer as the scenario says; past its answers the input ends, and asking on ends the run."""
        return self._surroundings.keyboard.input(prompt)

    def keep(self, name: str, made: Any) -> Any:
        """Remember an object that was created, for the methods that run on it."""
        if made is not None:
            self._numbers[id(made)] = len(self._numbers) + 1
            self.names.keep(name, made)
        return made

    async def _later(self, coroutine: Any, name: str) -> Any:
        return self.keep(name, await coroutine)

    def call(
        self,
        event: str,
        name: str,
        target: Any,
        args: tuple,
        kwargs: dict[str, Any],
        held: Any = None,
        made: Any = None,
    ) -> Any:
        """Call and record; `held` is the object of a method, `made` that of a constructor which gives nothing."""
        if isinstance(target, _Unrecorded):
            return target.target(*args, **kwargs)
        if self._recorded and not {name, name.rpartition(".")[2], _RESEARCH.get(event, "")} & set(self._recorded):
            return target(*args, **kwargs)
        self._limit.count()
        positional, named = self._arguments.named(target, args, kwargs)
        keywords = {k: summarise(v) for k, v in named.items()}
        record = Record(self.folder.next_number(), event, name, [summarise(a) for a in positional], keywords)
        record.object = self._numbers.setdefault(id(held), len(self._numbers) + 1) if held is not None else None
        record.file, record.line = self.sites.place(name)
        self.folder.write(record)
        finish = Finish(self.folder, record, self._paths(name, args, kwargs), self._meters)
        try:
            if self.stand_in is not None:
                result = self.stand_in.answer(event, name, tuple(positional), named, target)
            else:
                result = target(*args, **kwargs)
        except BaseException as error:
            finish.failed(error)
            if self.failures == "none" and isinstance(error, Exception):
                return None
            raise
        if inspect.iscoroutine(result):
            return finish.awaited(result)
        stream = recorded_stream(result, finish.streamed)
        if stream is not None:
            finish.streaming()
            return stream
        finish.returned(result if made is None or self.stand_in is not None else made)
        if not self.names.is_set_up:  # a rewritten script does not ask, and its results are not kept alive
            self._last = (name, result)
        return result

    def _paths(self, name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Path]:
        """The arguments that name files: those the manifest says, and any other that names an existing one."""
        declared = self.names.files.get(name, ())
        paths: dict[str, Path] = {}
        for key, value in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
            if isinstance(value, str | os.PathLike) and len(os.fspath(value)) < 4096:
                path = Path(os.fsdecode(value))
                if key in declared or (stamp(path) is not None and path.is_file()):
                    paths[key] = path
        return paths


_RESEARCH = {"create": "create_interface_objects"}  # what `set_record_function` calls a construction


def _find_manifest(name: str, folders: list[Path]) -> Any:
    from genwright.inspect.run.named_manifests import find_manifest

    return find_manifest(name, folders)


def _stand_in(plan: Plan) -> ModelStandIn | None:
    """What a replay or a mock puts in the model's place; None if the model itself runs."""
    if plan.mode not in ("replay", "mock"):
        return None
    from genwright.inspect.replay.model_stand_in import model_stand_in

    return model_stand_in(plan)


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
            full, owner = self._executor.names.routine(held)
            on = None if inspect.isclass(owner) else owner
            return self._executor.call("run", full, held, args, kwargs, on) if full else held(*args, **kwargs)
        kind = vars(super)["__thisclass__"].__get__(held).__mro__[1] if isinstance(held, super) else type(held)
        full = self._executor.names.method(held, kind, name)
        target = member_of(held, name) if self._executor.stand_in is None else None
        itself = vars(super)["__self__"].__get__(held) if isinstance(held, super) else held
        return self._executor.call("run", full, target, args, kwargs, itself)


class _Unrecorded:
    """Called through without a record of its own."""

    def __init__(self, target: Any) -> None:
        self.target = target
