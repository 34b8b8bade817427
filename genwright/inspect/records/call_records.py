"""The end of a recorded call, be it at once, awaited, or item by item."""

import time
import traceback
from pathlib import Path
from typing import Any

from genwright.inspect.records.new_files import NewFiles
from genwright.inspect.records.peak_memory import PeakMemory
from genwright.inspect.records.records import Record, RecordFolder, describe_file, stamp
from genwright.inspect.records.stored_values import store_value
from genwright.inspect.records.summary import is_plain, summarise


class Meters:
    """What one process measures calls by."""

    def __init__(self, folder: Path) -> None:
        self.memory, self.files = PeakMemory(), NewFiles(folder)


class Finish:
    """Completes one record when its call ends."""

    def __init__(self, folder: RecordFolder, record: Record, paths: dict[str, Path], meters: Meters) -> None:
        self._folder, self._record, self._paths, self._meters = folder, record, paths, meters
        self._before = {p: stamp(p) for p in paths.values()}
        self._there = meters.files.listing()
        self._on = True
        meters.memory.start()
        self._started = time.perf_counter()

    def returned(self, result: Any) -> None:
        self._stop()
        self._record.status, self._record.result = "returned", summarise(result)
        self._store(result)
        self._write()

    def failed(self, error: BaseException) -> None:
        self._stop()
        self._record.status = "raised"
        trace = traceback.format_exception(error)
        self._record.exception = {"type": type(error).__name__, "message": str(error), "traceback": trace[-6:]}
        self._write()

    def streaming(self) -> None:
        """A generator was returned; its record is completed when it ends."""
        self._record.status, self._record.result = "streaming", {"type": "stream", "count": 0, "items": []}
        self._folder.write(self._record)

    def streamed(self, shown: list[Any], items: list[Any], count: int, error: BaseException | None) -> None:
        self._stop()
        self._record.result = {**self._record.result, "count": count, "items": shown}
        self._store(items)
        if error is not None:
            self.failed(error)
            return
        self._record.status = "returned"
        self._write()

    async def awaited(self, coroutine: Any) -> Any:
        self._record.awaited = True
        try:
            result = await coroutine
        except BaseException as error:
            self.failed(error)
            raise
        self.returned(result)
        return result

    def _store(self, result: Any) -> None:
        if not is_plain(result):  # else the record itself has it in full
            stem = self._folder.path / "values" / f"{self._record.number:06d}"
            path = store_value(result, stem, self._folder.secrets)
            self._record.value = f"values/{path.name}" if path is not None else None

    def _stop(self) -> None:
        """Take time and memory before the result is summarised, which may take longer than the call."""
        if self._on:
            self._record.seconds = round(time.perf_counter() - self._started, 6)
            self._record.peak_memory = self._meters.memory.stop()
            self._on = False

    def _write(self) -> None:
        files = [describe_file(p, a, stamp(p) != self._before[p]) for a, p in self._paths.items()]
        new = [p for p in self._meters.files.since(self._there) if p not in self._before]
        self._record.files = [*files, *(describe_file(p, "", True) for p in new)]
        self._folder.write(self._record)
