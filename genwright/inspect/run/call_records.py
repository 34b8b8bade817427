"""The end of a recorded call, be it at once, awaited, or item by item."""

import time
import traceback
from pathlib import Path
from typing import Any

from genwright.inspect.run.records import Record, RecordFolder, describe_file, stamp
from genwright.inspect.run.summary import summarise


class Finish:
    """Completes one record when its call ends."""

    def __init__(self, folder: RecordFolder, record: Record, paths: dict[str, Path], home: Path) -> None:
        self._folder, self._record, self._paths, self._home = folder, record, paths, home
        self._before = {p: stamp(p) for p in paths.values()}
        self._there = set(home.iterdir())
        self._started = time.perf_counter()

    def returned(self, result: Any) -> None:
        self._stop()
        self._record.status, self._record.result = "returned", summarise(result)
        self._write()

    def failed(self, error: BaseException) -> None:
        self._stop()
        self._record.status = "raised"
        trace = traceback.format_exception(error)
        self._record.exception = {"type": type(error).__name__, "message": str(error), "traceback": trace[-6:]}
        self._write()

    def streamed(self, items: list[Any], count: int, error: BaseException | None) -> None:
        self._stop()
        if error is not None:
            self.failed(error)
        self._record.result = {"type": "stream", "count": count, "items": items}
        self._write()

    async def awaited(self, coroutine: Any) -> Any:
        try:
            result = await coroutine
        except BaseException as error:
            self.failed(error)
            raise
        self.returned(result)
        return result

    def _stop(self) -> None:
        """Take the time before the result is summarised, which may take longer than the call."""
        self._record.seconds = round(time.perf_counter() - self._started, 6)

    def _write(self) -> None:
        files = [describe_file(p, a, stamp(p) != self._before[p]) for a, p in self._paths.items()]
        new = sorted(set(self._home.iterdir()) - self._there)
        self._record.files = [*files, *(describe_file(p, "", True) for p in new if p not in self._before)]
        self._folder.write(self._record)
