"""Stands in for the visitors of a page or a server: calls the handlers that cross the model, with values of its own."""

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.value_choices import Wanted, choose

Report = Callable[[str, dict[str, Any], Any, BaseException | None], None]


class Visitor:
    """Knows which handlers to call (all, if none is named) and what to give them.

    `report` is told each handler with its values and its result or error.
    """

    def __init__(self, handlers: list[str], arguments: dict[str, Any], report: Report) -> None:
        self.handlers, self.arguments = handlers, arguments
        self._report = report

    def among(self, functions: list[Any]) -> list[Any]:
        """The named ones of some handlers; all of them where none is named or none of the named is there."""
        named = [f for f in functions if self._is_named(handler_name(f))]
        return named or functions

    def _is_named(self, name: str) -> bool:
        return any(name == h or name.endswith(f".{h}") for h in self.handlers)

    @contextlib.contextmanager
    def visiting(self, name: str) -> Iterator[None]:
        """Whatever a page or server of an unknown kind or version lacks, the script goes on."""
        try:
            yield
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            print(f"genwright: the handlers of {name} could not be called ({what}).", file=sys.stderr)

    @functools.cached_property
    def _root(self) -> Path:
        return Repository.around(Path(sys.argv[0] or ".")).root

    def value(self, name: str, kind: str = "", about: str = "", choices: tuple[Any, ...] = (), medium: str = "") -> Any:
        """A value that a visitor gives under a name: the scenario's, else one by choices, type and name."""
        if name in self.arguments:
            return self.arguments[name]
        return choose(Wanted(name, kind, about, choices, medium), self._root)[0]

    def call(self, name: str, given: dict[str, Any], handler: Callable[[], Any]) -> Any:
        """Run a handler to its end and report it; an error is the page's, and the script goes on."""
        with self._reported(name, given) as ended:
            ended.append(finished(handler()))
        return ended[0] if ended else None

    async def acall(self, name: str, given: dict[str, Any], handler: Awaitable[Any]) -> None:
        """The same for a handler that is awaited."""
        with self._reported(name, given) as ended:
            ended.append(await handler)

    @contextlib.contextmanager
    def _reported(self, name: str, given: dict[str, Any]) -> Iterator[list[Any]]:
        ended: list[Any] = []
        try:
            yield ended
        except Exception as error:
            print(f"genwright: the handler {name} raised {type(error).__name__}: {error}", file=sys.stderr)
            self._report(name, given, None, error)
        else:
            self._report(name, given, ended[0], None)


def handler_name(function: Any) -> str:
    """A handler's qualified name, as the analysis writes it."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__qualname__"):
        function = type(function).__call__
    return str(function.__qualname__).replace(".<locals>", "")


def finished(result: Any) -> Any:
    """What a handler gives in the end: of a coroutine its result, of a generator its last item."""
    if inspect.isgenerator(result):
        last = None
        for last in result:  # noqa: B007
            pass
        return last
    if inspect.isasyncgen(result):
        return run_async(_last(result))
    return run_async(result) if inspect.isawaitable(result) else result


async def _last(items: Any) -> Any:
    last = None
    async for last in items:  # noqa: B007
        pass
    return last


def run_async(awaitable: Any) -> Any:
    """Wait for a coroutine in a thread of its own, since a loop may already be running in this one."""

    async def waited() -> Any:
        return await awaitable

    outcome: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(waited()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]
