"""Records: one JSON file for the run, one for each call, in a fresh folder that all processes of a run share."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.records.media_metadata import media_metadata
from genwright.inspect.records.plan_file import RUN
from genwright.inspect.records.secrets import secret_values, without_secrets
from genwright.inspect.records.stored_runs import RUN_FILE, records_root, write_json

_HASHED = 1 << 26  # bytes of a file that are hashed
_NOT_A_NAME = re.compile(r"[^\w.]+")


@dataclass
class Record:
    """One call across the border; arguments are summarised before it runs."""

    number: int
    event: str
    interface: str
    arguments: list[Any]
    keywords: dict[str, Any]
    object: int | None = None
    line: int | None = None
    file: str | None = None
    status: str = "started"
    result: Any = None
    value: str | None = None
    exception: dict[str, Any] | None = None
    awaited: bool = False
    process: int = field(default_factory=os.getpid)
    started: float = field(default_factory=lambda: round(time.time(), 6))
    seconds: float | None = None
    peak_memory: int | None = None
    files: list[dict[str, Any]] = field(default_factory=list)


class RecordPath(str):
    """A run's folder as text that ends with a slash: it is joined with `+` or `/`, and has what a Path has."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Path:
        return Path(self) / name

    def __getattr__(self, name: str) -> Any:
        return getattr(Path(self), name)


class RecordFolder:
    """A run's folder; its calls lie in `calls/`."""

    def __init__(self, path: Path, made: bool) -> None:
        self.path, self.made = path, made
        self._calls = path / "calls"
        self.secrets = secret_values(os.environ, sys.argv[1:])
        self._processes: set[int] = set()
        # Held until the process ends, so that a reader knows whether the run is still on.
        self._lock = (path / "run.lock").open("w") if made else None
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def make(cls, name: str, label: str, root: Path | None = None) -> "RecordFolder":
        """A fresh folder `records/NAME/LABEL-0001`."""
        for text in (name, label):
            if not re.fullmatch(r"[\w.\- ]+", text) or text.startswith("."):
                raise UserError(f"An executor's name and label are plain names, not {text!r}.")
        base = (root or records_root()).absolute() / name
        try:
            base.mkdir(parents=True, exist_ok=True)
            path = _fresh(base, label)
            (path / "calls").mkdir()
            return cls(path, True)
        except OSError as error:
            raise UserError(f"The records cannot be written under {base}: {error.strerror}.") from error

    @classmethod
    def join_or_make(cls, name: str, label: str) -> "RecordFolder":
        """The folder of the run that this process is part of, or a fresh one."""
        maker, _, path = os.environ.get(RUN, "").partition(" ")
        if path and maker != str(os.getpid()) and (Path(path) / "calls").is_dir():
            return cls(Path(path), False)
        folder = cls.make(name, label)
        os.environ[RUN] = f"{os.getpid()} {folder.path}"
        return folder

    def next_number(self, counter: str = "calls") -> int:
        """The next number of the run, in whichever of its processes: appending a byte is atomic, and tells the length.

        No lock is needed, which a process could leave behind when it is forked or killed.
        """
        descriptor = os.open(self.path / f"{counter}.count", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, b".")
            return os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)

    def write_run(self, run: dict[str, Any]) -> None:
        write_json(self.path / RUN_FILE, without_secrets(run, self.secrets))

    def write(self, record: Record) -> None:
        """Write a call as it is now: in one piece, over what was there, which makes no new file and is not longer."""
        self.note_process()
        data = _line(without_secrets(vars(record), self.secrets))
        descriptor = os.open(self._path(record), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def _path(self, record: Record) -> str:
        name = _NOT_A_NAME.sub("_", record.interface)[:100] or record.event
        return f"{self._calls}/{record.number:06d}-{record.event}-{name}.json"

    def note_process(self) -> None:
        """A file for each process that takes part in the run."""
        if os.getpid() in self._processes:
            return
        self._processes.add(os.getpid())
        (self.path / "processes").mkdir(exist_ok=True)
        noted = {"pid": os.getpid(), "parent": os.getppid(), "started": round(time.time(), 6)}
        write_json(self.path / "processes" / f"{os.getpid()}.json", noted)


def _line(data: dict[str, Any]) -> bytes:
    """JSON on one line, which takes a tenth of the time of a readable text."""
    return (json.dumps(data, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace")


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def file_sha256(path: Path) -> str | None:
    """The hash of a file's content; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def describe_file(path: Path, argument: str, written: bool) -> dict[str, Any]:
    """A file that a call was given or wrote; media with their metadata."""
    entry: dict[str, Any] = {"path": str(path), "argument": argument, "written": written, "bytes": None}
    # What may not be read is told without its content.
    with contextlib.suppress(OSError):
        if path.is_file():
            entry["bytes"] = path.stat().st_size
            if entry["bytes"] <= _HASHED:
                entry["sha256"] = file_sha256(path)
            entry |= media_metadata(path)
    return entry


def _fresh(base: Path, label: str) -> Path:
    numbers = [
        int(p.name.rpartition("-")[2]) for p in base.glob(f"{label}-[0-9]*") if p.name.rpartition("-")[2].isdigit()
    ]
    number = max(numbers, default=0) + 1
    while True:
        try:
            path = base / f"{label}-{number:04d}"
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
