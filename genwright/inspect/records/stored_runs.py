"""Runs on disk: find them, read a run's record and its calls; nothing is unpickled."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.errors import UserError

RUN_FILE = "run.json"  # of a run's folder: how it was started, and how it ended


@dataclass(frozen=True)
class Call:
    """One recorded call; `value` is the file that holds the result in full."""

    number: int
    process: int
    event: str
    interface: str
    object: int | None
    line: int | None
    file: str | None
    arguments: list[Any]
    keywords: dict[str, Any]
    status: str
    result: Any
    value: Path | None
    exception: dict[str, Any] | None
    seconds: float | None
    peak_memory: int | None
    files: list[dict[str, Any]] = field(default_factory=list)
    started: float | None = None  # seconds since the epoch
    awaited: bool = False  # it gave a coroutine


CROSSINGS = ("create", "run")  # the events that are calls of an interface


class StoredRun:
    """A run's folder: `data` is run.json; a run that was killed says so in its `status`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = _read(path / RUN_FILE)
        if self.data.get("status") == "running" and not is_running(path):
            self.data |= {"status": "killed"}
            # A folder that cannot be written is told right all the same.
            with contextlib.suppress(OSError):
                write_json(path / RUN_FILE, self.data)

    @property
    def name(self) -> str:
        """How a command names the run: NAME/LABEL-0001."""
        return f"{self.path.parent.name}/{self.path.name}"

    def printed(self, stream: str, most: int = 10_000_000) -> str:
        """What the run printed to `output` or `error`; of more than so many bytes only the end."""
        try:
            with (self.path / f"{stream}.txt").open("rb") as file:
                left_out = max(0, file.seek(0, os.SEEK_END) - most)
                file.seek(left_out)
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return f"... ({left_out:,} bytes before)\n{text}" if left_out else text

    def count(self) -> int:
        """How many calls of interfaces there are; answers, windows and the like do not count."""
        return sum(path.name.split("-")[1] in CROSSINGS for path in self.call_files().values())

    def call_files(self) -> dict[int, Path]:
        """The file of each call by its number, in order."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.path / "calls") as entries:
            for entry in entries:
                number, _, rest = entry.name.partition("-")
                if number.isdigit() and rest.endswith(".json"):
                    found[int(number)] = Path(entry.path)
        return dict(sorted(found.items()))

    def calls(self) -> Iterator[Call]:
        """The calls in the order in which they began, each read when it is asked for."""
        for path in self.call_files().values():
            if path.stat().st_size:  # else its process was killed before it wrote anything
                yield self._call(path)

    def call(self, number: int) -> Call:
        """One call by its number."""
        path = next((self.path / "calls").glob(f"{number:06d}-*.json"), None)
        if path is None:
            found = self.call_files()  # answers and windows are numbered too
            there = f"its records are numbered 1 to {max(found)}" if found else "it has none"
            raise UserError(f"{self.name} has no record {number}; {there}.")
        return self._call(path)

    def _call(self, path: Path) -> Call:
        data = _read(path)
        names = [name for name in Call.__dataclass_fields__ if name not in ("value", "arguments", "keywords", "files")]
        value = data.get("value")
        return Call(
            **{name: data.get(name) for name in names},  # type: ignore[arg-type]
            arguments=data.get("arguments") or [],
            keywords=data.get("keywords") or {},
            files=data.get("files") or [],
            value=_below(self.path, value) if value else None,
        )


def records_root() -> Path:
    """The folder of all runs: GENWRIGHT_RECORDS, or `records` in the current folder."""
    return Path(os.environ.get("GENWRIGHT_RECORDS", "records")).absolute()


def open_run(name: str, root: Path | None = None) -> StoredRun:
    """A run by its folder, by NAME/LABEL-0001, or the one that began last (`last`)."""
    base = root or records_root()
    if name == "last":
        runs = stored_runs(base)
        if not runs:
            raise UserError(f"There is no run in {base}.")
        return runs[-1]
    for path in (Path(name), base / name):
        if (path / RUN_FILE).is_file():
            return StoredRun(path.absolute())
    raise UserError(f"There is no run {name!r}; pass a run's folder, NAME/LABEL-0001 of those in {base}, or `last`.")


def stored_runs(root: Path | None = None) -> list[StoredRun]:
    """Every run below a folder, in the order in which they began; a folder that cannot be read is left out."""
    runs = []
    for path in sorted((root or records_root()).absolute().glob(f"*/*/{RUN_FILE}")):
        with contextlib.suppress(UserError):
            runs.append(StoredRun(path.parent))
    return sorted(runs, key=lambda run: str(run.data.get("started", "")))


def is_running(path: Path) -> bool:
    """Whether the process that made a run's folder still holds its lock; the system releases that of a dead one."""
    try:
        with (path / "run.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_json(path: Path, data: Any) -> None:
    """Write a file by renaming it, so that a reader never sees half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    text = json.dumps(data, ensure_ascii=False, indent=1, default=str) + "\n"
    partial.write_bytes(text.encode("utf-8", "backslashreplace"))
    partial.replace(path)


def _read(path: Path, attempts: int = 3) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        if attempts:  # it may just be written
            time.sleep(0.01)
            return _read(path, attempts - 1)
        raise UserError(f"The record {path} is not JSON: {error}.") from error
    except (OSError, RecursionError) as error:
        raise UserError(f"The record {path} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise UserError(f"The record {path} is not a JSON object.")
    return data


def _below(folder: Path, name: Any) -> Path:
    """A file that a record names, which must lie in the run's folder."""
    path = (folder / str(name)).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UserError(f"A record of {folder} names a file outside of it: {name}.")
    return path
