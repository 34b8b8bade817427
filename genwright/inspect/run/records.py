"""Records: one JSON file for the run, one for each call, in a fresh folder."""

import contextlib
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from genwright.errors import UserError

_HASHED = 1 << 26  # bytes of a file that are hashed


@dataclass
class Record:
    """One call across the border; arguments are summarised before it runs."""

    number: int
    event: str
    interface: str
    arguments: list[Any]
    keywords: dict[str, Any]
    object: int | None = None
    status: str = "started"
    result: Any = None
    exception: dict[str, Any] | None = None
    seconds: float = 0.0
    files: list[dict[str, Any]] = field(default_factory=list)


class RecordPath(str):
    """A run's folder as text that ends with a slash; scripts join it with `+`, `/` or os.path.join."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Path:
        return Path(self) / name


class RecordFolder:
    """A run's folder, `records/NAME/LABEL-0001`, made anew for each run; its calls lie in `calls/`."""

    def __init__(self, name: str, label: str) -> None:
        for text in (name, label):
            if not re.fullmatch(r"[\w.\- ]+", text) or text.startswith("."):
                raise UserError(f"An executor's name and label are plain names, not {text!r}.")
        base = Path(os.environ.get("GENWRIGHT_RECORDS", "records")).absolute() / name
        try:
            base.mkdir(parents=True, exist_ok=True)
            self.path = _fresh(base, label)
            (self.path / "calls").mkdir()
        except OSError as error:
            raise UserError(f"The records cannot be written under {base}: {error}.") from error

    def write_run(self, run: dict[str, Any]) -> None:
        self._write("run.json", run)

    def write(self, record: Record) -> None:
        name = re.sub(r"[^\w.]+", "_", record.interface) or record.event
        self._write(f"calls/{record.number:04d}-{record.event}-{name}.json", asdict(record))

    def _write(self, name: str, data: dict[str, Any]) -> None:
        # A reader never sees half a record.
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(data, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")
        partial.replace(self.path / name)


def read_records(folder: Path) -> list[Record]:
    """A run's records, in the order of the calls."""
    return [Record(**json.loads(p.read_text(encoding="utf-8"))) for p in sorted((folder / "calls").glob("*.json"))]


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def describe_file(path: Path, argument: str, written: bool) -> dict[str, Any]:
    """A file that a call was given or wrote."""
    entry: dict[str, Any] = {"path": str(path), "argument": argument, "written": written, "bytes": None}
    # What may not be read is told without its content.
    with contextlib.suppress(OSError):
        if path.is_file():
            entry["bytes"] = path.stat().st_size
            if entry["bytes"] <= _HASHED:
                entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
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
