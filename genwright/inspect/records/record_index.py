"""An SQLite index of a run's calls, made from their records: it can be deleted and is made anew."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genwright.inspect.records.stored_runs import StoredRun

COLUMNS = ("number", "process", "event", "interface", "object", "line", "status", "started", "seconds", "peak_memory")
_ENDED = ("returned", "raised")


class RecordIndex:
    """The calls of one run as rows; opened, it knows every record that is there."""

    def __init__(self, run: StoredRun, connection: sqlite3.Connection) -> None:
        self._run, self._connection = run, connection

    def calls(self) -> list[dict[str, Any]]:
        """The calls in order."""
        query = f"SELECT {', '.join(COLUMNS)} FROM calls ORDER BY number"
        return [dict(zip(COLUMNS, row, strict=True)) for row in self._connection.execute(query)]

    def written_files(self) -> set[str]:
        """The files that calls wrote."""
        return {path for (path,) in self._connection.execute("SELECT path FROM files")}

    def processes(self) -> dict[int, tuple[float, float]]:
        """When each process began its first call and ended its last."""
        query = "SELECT process, MIN(started), MAX(started + COALESCE(seconds, 0)) FROM calls GROUP BY process"
        return {process: (first, last) for process, first, last in self._connection.execute(query)}

    def refresh(self) -> None:
        """Read the records that are new or were not complete."""
        done = f"SELECT number FROM calls WHERE status IN {_ENDED}"
        known = {number for (number,) in self._connection.execute(done)}
        with self._connection:
            for number, path in self._run.call_files().items():
                if number not in known:
                    self._insert(path)

    def _insert(self, path: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            row = [record.get(column) for column in COLUMNS]
            self._connection.execute(f"INSERT OR REPLACE INTO calls VALUES ({', '.join('?' * len(row))})", row)
            written = [(record["number"], f["path"]) for f in record.get("files", []) if f.get("written")]
            self._connection.executemany("INSERT INTO files VALUES (?, ?)", written)


@contextmanager
def open_index(run: StoredRun) -> Iterator[RecordIndex]:
    """A run's index, up to date; in memory where it cannot be kept in the run's folder."""
    connection = _filled(run, str(run.path / "index.sqlite")) or _filled(run, ":memory:")
    if connection is None:
        raise sqlite3.OperationalError("no database can be opened")
    try:
        yield RecordIndex(run, connection)
    finally:
        connection.close()


def _filled(run: StoredRun, place: str) -> sqlite3.Connection | None:
    try:
        connection = sqlite3.connect(place, timeout=10)
        connection.execute("PRAGMA synchronous = OFF")  # what is lost is made anew
        types = ", ".join(f"{c} PRIMARY KEY" if c == "number" else c for c in COLUMNS)
        connection.execute(f"CREATE TABLE IF NOT EXISTS calls ({types})")
        connection.execute("CREATE TABLE IF NOT EXISTS files (number, path)")
        RecordIndex(run, connection).refresh()
    except sqlite3.Error:  # not writable, a full disk, or not such a database
        return None
    return connection
