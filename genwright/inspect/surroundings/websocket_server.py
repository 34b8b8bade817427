"""A stand-in for a server of the package websockets: its handler gets one message, and then the connection closes."""

import asyncio
import contextlib
import importlib
import inspect
import json
from typing import Any

from genwright.inspect.surroundings.visitor import Visitor, handler_name
from genwright.inspect.surroundings.web_requests import by_source


class WebsocketServer:
    """What `websockets.serve(handler, ...)` gives: awaited, entered, or, for the threaded one, served for ever."""

    def __init__(self, visitor: Visitor, handler: Any) -> None:
        self._visitor, self._handler = visitor, handler

    def __await__(self) -> Any:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> "WebsocketServer":
        connection = self._connection()
        told = {"message": connection.messages[0]}
        await self._visitor.acall(handler_name(self._handler), told, self._answered(connection))
        # The script would wait for ever now, in one of many ways; the loop ends, and with it the run.
        asyncio.get_running_loop().call_soon(_end)
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def __enter__(self) -> "WebsocketServer":
        return self

    def __exit__(self, *error: object) -> None: ...

    def serve_forever(self) -> Any:
        connection = self._connection()
        told = {"message": connection.messages[0]}

        def answered() -> list[Any]:
            with contextlib.suppress(_closed()):
                self._handler(connection)
            return connection.sent

        self._visitor.call(handler_name(self._handler), told, answered)

    def shutdown(self) -> None: ...

    def _connection(self) -> "_Connection":
        request = by_source(self._handler, "POST", "/", self._visitor)
        text = json.dumps(request.data) if request.data else str(self._visitor.value("message"))
        is_async = inspect.iscoroutinefunction(inspect.unwrap(self._handler))
        return _AsyncConnection(text) if is_async else _Connection(text)

    async def _answered(self, connection: "_Connection") -> list[Any]:
        # Before websockets 10.1 a handler also takes the path.
        takes_path = len(inspect.signature(self._handler).parameters) > 1
        with contextlib.suppress(_closed()):
            await self._handler(connection, *(["/"] if takes_path else []))
        return connection.sent


class _Connection:
    """A connection over which one message comes."""

    def __init__(self, text: str) -> None:
        self.messages, self.sent = [text], list[Any]()
        self._next = 0
        self.path, self.remote_address = "/", ("127.0.0.1", 0)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        if self._next == len(self.messages):
            raise _closed()(None, None)
        self._next += 1
        return self.messages[self._next - 1]

    def send(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(message)

    def close(self, *args: Any, **kwargs: Any) -> Any: ...

    def __iter__(self) -> Any:
        while self._next < len(self.messages):
            yield self.recv()


class _AsyncConnection(_Connection):
    async def recv(self, *args: Any, **kwargs: Any) -> Any:
        return super().recv()

    async def send(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        super().send(message)

    async def close(self, *args: Any, **kwargs: Any) -> Any: ...

    async def __aiter__(self) -> Any:
        while self._next < len(self.messages):
            yield await self.recv()


def _closed() -> type[Exception]:
    """What a handler gets when it reads from a connection that its visitor has closed."""
    closed: type[Exception] = importlib.import_module("websockets.exceptions").ConnectionClosedOK
    return closed


def _end() -> None:
    raise SystemExit(0)
