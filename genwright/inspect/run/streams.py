"""Generators that record what passes through them."""

from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any

from genwright.inspect.run.summary import summarise

_SHOWN = 32
Report = Callable[[list[Any], int, BaseException | None], None]


class _Counter:
    def __init__(self, report: Report) -> None:
        self._report, self._items, self._count = report, list[Any](), 0

    def passed(self, item: Any) -> Any:
        self._count += 1
        if self._count <= _SHOWN:
            self._items.append(summarise(item))
        return item

    def ended(self, error: BaseException | None) -> None:
        expected = isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit)
        self._report(self._items, self._count, None if expected else error)


class RecordedGenerator(Generator):
    """A generator whose items are reported when it ends, fails or is closed."""

    def __init__(self, generator: Any, report: Report) -> None:
        self._generator, self._counter = generator, _Counter(report)

    def send(self, value: Any, /) -> Any:
        return self._step(lambda: self._generator.send(value))

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        error = value if value is not None else kind
        return self._step(lambda: self._generator.throw(error))

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
        return await self._step(self._generator.asend(value))

    async def athrow(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        return await self._step(self._generator.athrow(value if value is not None else kind))

    async def _step(self, advance: Any) -> Any:
        try:
            item = await advance
        except BaseException as error:
            self._counter.ended(error)
            raise
        return self._counter.passed(item)
