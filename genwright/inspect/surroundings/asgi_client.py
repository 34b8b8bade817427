"""Calls the routes of an ASGI application (FastAPI, Starlette), with no server between."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from genwright.inspect.surroundings.visitor import Visitor
from genwright.inspect.surroundings.web_requests import SHOWN, Request, answer, by_schema, by_source

_FRAMEWORKS = ("fastapi", "starlette")
_SCOPE = {"asgi": {"version": "3.0"}, "http_version": "1.1", "root_path": "", "client": ("127.0.0.1", 0)}


@dataclass(frozen=True)
class Route:
    """A path, its function, and its methods; None for a websocket."""

    path: str
    endpoint: Any
    methods: Any


class AsgiClient:
    """Starts an application, sends each wanted route its requests, and shuts it down."""

    def __init__(self, app: Any, visitor: Visitor) -> None:
        self._app, self._visitor = app, visitor
        self._state: dict[str, Any] = {}

    async def visit(self) -> None:
        routes = [r for r in _routes(self._app.routes) if not r.endpoint.__module__.startswith(_FRAMEWORKS)]
        wanted = self._visitor.among([r.endpoint for r in routes])
        schema = self._app.openapi() if hasattr(self._app, "openapi") else {"paths": {}}
        async with _Lifespan(self._app, self._state):
            for route in routes:
                if route.endpoint in wanted:
                    await self._route(route, schema)

    async def _route(self, route: Route, schema: dict[str, Any]) -> None:
        method = request_method(route.methods or ["POST"])
        read = by_source(route.endpoint, method, _filled(route.path, self._visitor), self._visitor)
        if route.methods is None:
            await self._send(f"WEBSOCKET {route.path}", read, self._websocket)
            return
        operation = schema["paths"].get(route.path, {}).get(method.lower())
        requests = by_schema(operation, schema, read, route.path, self._visitor) if operation else [read]
        for request in requests:
            await self._send(f"{method} {route.path}", request, self._http)

    async def _send(self, name: str, request: Request, send: Callable[[Request], Any]) -> None:
        await self._visitor.acall(name, request.recorded, send(request))

    def _scope(self, kind: str, request: Request) -> dict[str, Any]:
        content, body = request.body()
        headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
        headers += [(b"content-type", content.encode())] if content else []
        path, _, query = request.target.partition("?")
        return _SCOPE | {
            "type": kind,
            "method": request.method,
            "scheme": "ws" if kind == "websocket" else "http",
            "path": request.path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "server": ("localhost", 80),
            "subprotocols": [],
            "state": dict(self._state),
        }

    async def _http(self, request: Request) -> dict[str, Any]:
        pending = [{"type": "http.request", "body": request.body()[1], "more_body": False}]
        status, body = 0, b""

        async def receive() -> dict[str, Any]:
            # An answer that is streamed listens for the visitor's leaving until it has ended.
            return pending.pop() if pending else await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body = (body + message.get("body", b""))[:SHOWN]

        await self._app(self._scope("http", request), receive, send)
        return answer(request, status, body)

    async def _websocket(self, request: Request) -> list[Any]:
        text = json.dumps(request.data) if request.data else str(self._visitor.value("message"))
        pending: list[dict[str, Any]] = [
            {"type": "websocket.connect"},
            {"type": "websocket.receive", "text": text, "bytes": text.encode()},
            {"type": "websocket.disconnect", "code": 1000},
        ]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return pending.pop(0) if pending else await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("text") or message.get("bytes") or message["type"])

        try:
            await self._app(self._scope("websocket", request), receive, send)
        except Exception as error:
            if type(error).__name__ != "WebSocketDisconnect":  # how a handler learns that its visitor has left
                raise
        return sent


class _Lifespan:
    """An application between its startup and its shutdown; one that has neither is used as it is."""

    def __init__(self, app: Any, state: dict[str, Any]) -> None:
        self._app, self._state = app, state
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> None:
        scope = _SCOPE | {"type": "lifespan", "state": self._state}
        self._task = asyncio.ensure_future(self._app(scope, self._received.get, self._sent.put))
        await self._step("startup")

    async def __aexit__(self, *error: object) -> None:
        await self._step("shutdown")
        await asyncio.gather(self._task, return_exceptions=True)

    async def _step(self, name: str) -> None:
        await self._received.put({"type": f"lifespan.{name}"})
        told = asyncio.ensure_future(self._sent.get())
        await asyncio.wait([self._task, told], return_when="FIRST_COMPLETED")
        message = told.result() if told.done() else {}
        told.cancel()
        if message.get("type", "").endswith("failed"):
            raise RuntimeError(message.get("message") or message["type"])


def _routes(routes: Any, prefix: str = "") -> list[Route]:
    """The routes with a function each, also those of mounted applications and included routers."""
    found: list[Route] = []
    for route in routes:
        if getattr(route, "endpoint", None):
            found.append(Route(f"{prefix}{route.path}", route.endpoint, getattr(route, "methods", None)))
        elif hasattr(route, "effective_candidates"):  # newer FastAPI keeps an included router as one
            inner = route.effective_candidates()
            found += _routes([getattr(r, "starlette_route", None) or r for r in inner], prefix)
        elif getattr(route, "routes", None):
            found += _routes(route.routes, f"{prefix}{route.path}")
    return found


def request_method(methods: Any) -> str:
    """The method to send: one with a body, where the route takes one."""
    return next((m for m in ("POST", "PUT", "PATCH", "DELETE") if m in (methods or ())), "GET")


def _filled(path: str, visitor: Visitor) -> str:
    """A path with values for its parameters: `/items/{item_id:int}`."""
    kinds = {"int": "int", "float": "float"}
    return re.sub(r"\{(\w+)(?::(\w+))?\}", lambda m: str(visitor.value(m[1], kinds.get(m[2] or "", ""))), path)
