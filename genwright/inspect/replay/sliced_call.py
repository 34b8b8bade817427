"""What a slice runs with: recorded results for the calls before its own, and the arguments when it gets there."""

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.records.plan_file import read_plan
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.records.summary import summarise
from genwright.inspect.replay.recorded_results import hand_out
from genwright.inspect.replay.stand_in_modules import class_of, stand_in_for
from genwright.inspect.surroundings.keyboard import Keyboard
from genwright.inspect.surroundings.surroundings import install_pages_and_windows
from genwright.inspect.surroundings.visitor import Visitor

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _ReachedError(BaseException):
    """Leaves the script at the call; no `except Exception` stops it."""


class SlicedCall:
    """One call of a recorded run; the calls of the script before it are answered by the records."""

    def __init__(self, folder: str, number: int) -> None:
        self._run = StoredRun(Path(folder))
        self._number = number
        self._homes = list((self._run.data.get("interfaces") or {}).items())
        self._calls: dict[tuple[str, int | None], list[Call]] = defaultdict(list)
        for call in self._run.calls():
            if call.event in ("create", "run"):
                self._calls[call.interface, call.line].append(call)
        self._done: dict[tuple[str, int | None], int] = defaultdict(int)
        self._reached: tuple[Arguments, dict[str, Any]] | None = None

    def __call__(self, line: int, interface: str, /, *args: Any, **kwargs: Any) -> Any:
        """An interface call of the slice: its recorded result, or the end if it is the call itself."""
        if self._reached is not None:  # the script caught the end
            raise _ReachedError
        place = (interface, line)
        done = self._done[place]
        self._done[place] += 1
        if done >= len(self._calls[place]):
            raise UserError(f"{self._run.name} has no call {done + 1} of {interface} in line {line}.")
        call = self._calls[place][done]
        if call.number == self._number:
            told = {"arguments": [summarise(a) for a in args], "keywords": {k: summarise(v) for k, v in kwargs.items()}}
            self._reached = (args, kwargs), told
            raise _ReachedError
        return hand_out(call, class_of(self._homes, interface) if call.event == "create" else None)

    def function(self, body: Callable[[], None]) -> Callable[[], Arguments]:
        """Make the slice's body a function that returns the arguments, positional and by name."""

        def arguments() -> Arguments:
            self._reached = None
            self._done.clear()
            with self._surroundings():
                try:
                    body()
                except _ReachedError:
                    pass
                except UserError:
                    raise
                except BaseException as error:
                    if self._reached is None:
                        said = " ".join(str(error).splitlines()[:1])
                        raise UserError(f"{type(error).__name__} before the call: {said}") from error
            if self._reached is None:
                raise UserError(f"The slice ends without its call {self._number}.")
            return self._reached[0]

        return arguments

    def show(self, arguments: Callable[[], Arguments]) -> None:
        """Print the arguments as records tell them."""
        printed = sys.stdout
        sys.stdout = sys.stderr  # what the script prints is not the answer
        try:
            arguments()
        except UserError as error:
            sys.exit(f"genwright: {error}")
        finally:
            sys.stdout = printed
        assert self._reached is not None
        print(json.dumps(self._reached[1], ensure_ascii=False))

    def _path(self, script: Path) -> list[str]:
        plan = read_plan(self._run.path)
        if plan is not None:
            return plan.path
        repository = Repository.around(script)
        return list(dict.fromkeys(map(str, [script.parent, repository.top(script), repository.root])))

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """The command line, environment, answers and working folder of the run, without the run's own folder."""
        data = self._run.data
        script = Path(str(data.get("script", "")))
        before = sys.argv, sys.path[:], os.getcwd()
        sys.argv = [str(script), *map(str, data.get("argv", []))]
        sys.path[:0] = self._path(script)
        os.environ.update((data.get("scenario") or {}).get("environment") or {})
        stand_in_for(self._homes)
        keyboard = Keyboard(lambda name, prompt, answer: None)
        keyboard.give(list(data.get("answers") or []))
        keyboard.install()
        ui = (data.get("scenario") or {}).get("ui") or {}
        visitor = Visitor(ui.get("handler", []), ui.get("arguments", {}), lambda *told: None)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as pictures:
            install_pages_and_windows(visitor, lambda *told: None, Path(pictures), lambda *told: None)
            # Relative reads find the script's files; relative writes vanish.
            for path in script.parent.iterdir() if script.parent.is_dir() else ():
                Path(folder, path.name).symlink_to(path)
            os.chdir(folder)
            try:
                yield
            finally:
                sys.argv, sys.path[:], _ = before
                os.chdir(before[2])
