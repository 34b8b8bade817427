"""Servers that a script would start: their handlers are called once for each example, and the script goes on."""

import importlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.surroundings.asgi_client import AsgiClient, request_method
from genwright.inspect.surroundings.import_hooks import after_import
from genwright.inspect.surroundings.visitor import Visitor, handler_name, run_async
from genwright.inspect.surroundings.web_requests import Request, answer, by_source, paths_in
from genwright.inspect.surroundings.websocket_server import WebsocketServer


class Servers:
    """Stands in for the functions that serve until they are stopped; `record` is told the function and the server."""

    def __init__(self, visitor: Visitor, record: Callable[[str, list[Any]], None]) -> None:
        self._visitor, self._record = visitor, record

    def install(self) -> None:
        """Stand in wherever a library is imported."""
        after_import(
            {
                "socketserver": lambda m: self._stand_in(m.BaseServer, "serve_forever", "socketserver", self._http),
                "flask.app": lambda m: self._stand_in(m.Flask, "run", "flask", self._flask),
                "waitress": lambda m: self._stand_in(m, "serve", "waitress", self._flask),
                "uvicorn.server": self._uvicorn_server,
                "uvicorn.main": lambda m: self._stand_in(m, "run", "uvicorn", lambda app: run_async(self._asgi(app))),
                "asyncio.base_events": self._asyncio,
                "aiohttp.web": lambda m: self._stand_in(m, "run_app", "aiohttp.web", lambda _: None),
                **{f"websockets.{kind}.server": self._websockets for kind in ("asyncio", "legacy", "sync")},
            }
        )

    def _stand_in(self, owner: Any, name: str, place: str, visit: Callable[[Any], None]) -> None:
        full = f"{place}.{owner.__name__}.{name}" if isinstance(owner, type) else f"{place}.{name}"

        def serve(*served: Any, **kwargs: Any) -> None:
            self._record(full, [repr(s) for s in served[:1]])
            with self._visitor.visiting(full):
                visit(served[0] if served else kwargs.get("app"))

        setattr(owner, name, serve)

    def _asyncio(self, module: Any) -> None:
        async def serve_forever(server: Any) -> None:
            self._record("asyncio.Server.serve_forever", [repr(server)])

        module.Server.serve_forever = serve_forever

    def _flask(self, app: Any) -> None:
        """Every rule of a Flask application whose function is wanted, through the application's own test client."""
        rules = [(r, app.view_functions[r.endpoint]) for r in app.url_map.iter_rules() if r.endpoint != "static"]
        wanted = self._visitor.among([handler for _, handler in rules])
        for rule, handler in rules:
            if handler not in wanted:
                continue
            kinds = {n: type(c).__name__.lower().removesuffix("converter") for n, c in rule._converters.items()}
            kinds = {n: "int" if k == "integer" else k for n, k in kinds.items()}
            values = {n: self._visitor.value(n, kinds.get(n, "")) for n in rule.arguments}
            method = request_method(rule.methods)
            path = app.url_map.bind("localhost").build(rule.endpoint, values, method)
            request = by_source(handler, method, path, self._visitor)
            self._visitor.call(f"{method} {rule.rule}", request.recorded, _flask_call(app, request))

    def _uvicorn_server(self, module: Any) -> None:
        self._stand_in(module.Server, "run", "uvicorn", lambda server: run_async(self._asgi(server.config.app)))

        async def serve(server: Any, *args: Any, **kwargs: Any) -> None:
            self._record("uvicorn.Server.serve", [repr(server)])
            await self._asgi(server.config.app)

        module.Server.serve = serve

    async def _asgi(self, app: Any) -> None:
        if isinstance(app, str):
            module, _, name = app.partition(":")
            # The script names itself; importing it anew would run the original.
            is_script = module.rpartition(".")[2] == Path(sys.argv[0]).stem
            held = sys.modules["__main__"] if is_script else importlib.import_module(module)
            app = getattr(held, name or "app")
        if hasattr(app, "routes"):
            await AsgiClient(app, self._visitor).visit()

    def _http(self, server: Any) -> None:
        """Each `do_GET` or `do_POST` of an http.server, with a connection that holds one request."""
        kind = server.RequestHandlerClass
        methods = [m for m in ("POST", "PUT", "GET") if hasattr(kind, f"do_{m}")]
        own = [m for m in methods if not getattr(kind, f"do_{m}").__module__.startswith("http.")]
        wanted = self._visitor.among([getattr(kind, f"do_{m}") for m in own])
        for method in own:
            if getattr(kind, f"do_{method}") in wanted:
                for path in paths_in(kind):
                    request = by_source(kind, method, path, self._visitor)
                    self._visitor.call(f"{method} {path}", request.recorded, _http_call(server, request))

    def _websockets(self, module: Any) -> None:
        def serve(handler: Any, *args: Any, **kwargs: Any) -> WebsocketServer:
            self._record("websockets.serve", [handler_name(handler)])
            return WebsocketServer(self._visitor, handler)

        module.serve = serve


def _flask_call(app: Any, request: Request) -> Callable[[], Any]:
    def call() -> dict[str, Any]:
        kind, body = request.body()
        given = app.test_client().open(request.target, method=request.method, data=body, content_type=kind or None)
        return answer(request, given.status_code, given.get_data())

    return call


class _Connection:
    """A socket that holds one request and keeps the answer."""

    def __init__(self, request: Request) -> None:
        kind, body = request.body()
        head = f"{request.method} {request.target} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        self._given = head.encode() + (f"Content-Type: {kind}\r\n" if kind else "").encode() + b"\r\n" + body
        self.answer = b""

    def makefile(self, mode: str, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._given)

    def sendall(self, data: bytes) -> None:
        self.answer += data

    def settimeout(self, seconds: float | None) -> None: ...

    def setsockopt(self, *_: Any) -> None: ...


def _http_call(server: Any, request: Request) -> Callable[[], Any]:
    def call() -> dict[str, Any]:
        connection = _Connection(request)
        server.RequestHandlerClass(connection, ("127.0.0.1", 0), server)
        status = re.match(rb"HTTP/\S+ (\d+)", connection.answer)
        return answer(request, int(status[1]) if status else 0, connection.answer)

    return call
