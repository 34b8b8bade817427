"""Recorded results handed to a running script: values, streams, coroutines, objects and exceptions."""

import builtins
import sys
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any

from genwright.inspect.records.stored_runs import Call
from genwright.inspect.records.stored_values import OpaqueValue, load_value
from genwright.inspect.replay.stand_in import stand_in_of, uninitialised


class RecordedStream(Generator, AsyncGenerator):
    """A generator, plain or asynchronous, that gives recorded items and then ends as the recorded one did."""

    def __init__(self, items: list[Any], error: BaseException | None) -> None:
        self._items, self._error = iter(items), error

    def send(self, value: Any, /) -> Any:
        for item in self._items:
            return item
        raise self._error or StopIteration

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        raise value if value is not None else kind

    async def asend(self, value: Any, /) -> Any:
        for item in self._items:
            return item
        raise self._error or StopAsyncIteration

    async def athrow(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        raise value if value is not None else kind


def hand_out(call: Call, kind: Any = None) -> Any:
    """Give or raise what a call gave or raised; `kind` is the class of the object that a `create` made."""
    return _awaited(call, kind) if call.awaited else _result(call, kind)


async def _awaited(call: Call, kind: Any) -> Any:
    return _result(call, kind)


def _result(call: Call, kind: Any) -> Any:
    error = recorded_exception(call.exception) if call.exception is not None else None
    if isinstance(call.result, dict) and call.result.get("type") == "stream":
        items = load_value(call) if call.value is not None else call.result.get("items", [])  # short and plain
        return RecordedStream(items, error)
    if error is not None:
        raise error
    if call.event == "create":
        return uninitialised(kind, call.interface, call.result)
    value = load_value(call)
    return stand_in_of(call.result, f"{call.interface}()") if isinstance(value, OpaqueValue) else value


def same_arguments(call: Call, arguments: list[Any], keywords: dict[str, Any]) -> bool:
    """Whether summaries are those of a recorded call, which tells positional arguments by name where it can."""
    if (call.arguments, call.keywords) == (arguments, keywords):
        return True
    names = list(call.keywords)[: len(arguments) - len(call.arguments)]
    positional = [*call.arguments, *(call.keywords[name] for name in names)]
    rest = {name: value for name, value in call.keywords.items() if name not in names}
    return positional == arguments and rest == keywords


def recorded_exception(data: dict[str, Any]) -> BaseException:
    """The exception of a record, of its own class where that can be had without an import."""
    module, _, name = str(data.get("type", "RuntimeError")).rpartition(".")
    found: Any = getattr(sys.modules.get(module or "builtins"), name, None) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        found = type(name, (RuntimeError,), {"__module__": module or __name__})
    message = str(data.get("message", ""))
    try:
        return found(message)
    except Exception:  # a class that wants other arguments
        error = found.__new__(found)
        error.args = (message,)
        return error
