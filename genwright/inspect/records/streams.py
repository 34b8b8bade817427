"""Generators that record what passes through them."""

from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any

from genwright.inspect.records.summary import summarise

_SHOWN = 32
_KEPT = 10_000  # items that are stored in full
Report = Callable[[list[Any], list[Any], int, BaseException | None], None]


class _Counter:
    def __init__(self, report: Report) -> None:
        self._report, self._count, self._ended = report, 0, False
        self._shown: list[Any] = []
        self._items: list[Any] = []

    def passed(self, item: Any) -> Any:
        self._count += 1
        if self._count <= _SHOWN:
            self._shown.append(summarise(item))
        if self._count <= _KEPT:
            self._items.append(item)
        return item

    def ended(self, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        expected = isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit)
        self._report(self._shown, self._items, self._count, None if expected else error)
        self._items = []


class RecordedGenerator(Generator):
    """A generator whose items are reported when it ends, fails, is closed or is no longer needed."""

    def __init__(self, generator: Any, report: Report) -> None:
        self._generator, self._counter = generator, _Counter(report)

    def send(self, value: Any, /) -> Any:
        return self._step(lambda: self._generator.send(value))

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        error = value if value is not None else kind
        return self._step(lambda: self._generator.throw(error))

    def __del__(self) -> None:
        self._counter.ended(None)

    def _step(self, advance: Callable[[], Any]) -> Any:
        try:
            item = advance()
        except BaseException as error:
            self._counter.ended(error)
            raise
        return self._counter.passed(item)


class RecordedAsyncGenerator(AsyncGenerator):
    """The same for an asynchronous generator."""

    def __init__(self, generator: Any, report: Report) -> None:
        self._generator, self._counter = generator, _Counter(report)

    async def asend(self, value: Any, /) -> Any:
        return await self._wait(self._generator.asend(value))

    async def athrow(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        return await self._wait(self._generator.athrow(value if value is not None else kind))

    def __del__(self) -> None:
        self._counter.ended(None)

    async def _wait(self, advance: Any) -> Any:
        try:
            item = await advance
        except BaseException as error:
            self._counter.ended(error)
            raise
        return self._counter.passed(item)


class RecordedEither(RecordedGenerator, RecordedAsyncGenerator):
    """The same for what may be iterated in both ways, as a replayed stream may."""


def recorded_stream(stream: Any, report: Report) -> RecordedGenerator | RecordedAsyncGenerator | None:
    """A generator of either kind that reports to `report`; None for anything else."""
    plain, asynchronous = isinstance(stream, Generator), isinstance(stream, AsyncGenerator)
    if plain and asynchronous:
        return RecordedEither(stream, report)
    if plain:
        return RecordedGenerator(stream, report)
    return RecordedAsyncGenerator(stream, report) if asynchronous else None
