"""What every request passes: its id, the key, the limit of requests per minute, and the line in the log."""

import secrets
import time
from collections import deque
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genwright.serve.endpoint import error_response
from genwright.serve.http_errors import RequestError
from genwright.serve.service import Record, Service

OPEN_PATHS = frozenset({"/health", "/ready"})
MINUTE = 60.0
MOST_CALLERS = 10_000  # whose requests are remembered for the limit per minute
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Guards:
    """ASGI middleware around all endpoints."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service
        self._keys = [sha256(key.encode()).digest() for key in service.keys]
        self._recent: dict[str, deque[float]] = {}  # by key or address: when it sent its last requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = scope["record"] = Record(f"req_{secrets.token_hex(12)}")
        status = 499  # unless an answer is sent

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", record.id.encode()), *_SECURITY]
                message = {**message, "headers": [*headers, (b"request-id", record.id.encode())]}
            await send(message)

        caller: str | None = None
        try:
            try:
                caller = self._check(scope)
            except RequestError as error:
                await error_response(error, scope["path"], record)(scope, receive, send_with_id)
                return
            await self.app(scope, receive, send_with_id)
        finally:
            self._log(scope, record, status, caller)

    def _check(self, scope: Scope) -> str | None:
        """The first letters of the caller's key's hash; raises a RequestError without a right key or over the limit."""
        headers, path = Headers(scope=scope), scope["path"]
        if path in OPEN_PATHS or (path == "/" and scope["method"] in ("GET", "HEAD")):
            return None
        caller = None
        if self._keys:
            bearer = headers.get("authorization", "")
            given = bearer[7:].strip() if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
            digest = sha256(given.encode("utf-8", "replace")).digest()
            if not sum(compare_digest(digest, key) for key in self._keys):  # all of them, in constant time
                what = (
                    "is not one of this server's" if given else "is missing; send it as a Bearer token or as x-api-key"
                )
                raise RequestError(f"The API key {what}.", None, 401, "invalid_api_key")
            caller = digest.hex()[:8]
        if self.service.settings.requests_per_minute is not None and scope["method"] == "POST":
            self._count(caller or (scope.get("client") or [""])[0], self.service.settings.requests_per_minute)
        return caller

    def _count(self, caller: str, most: int) -> None:
        now = time.monotonic()
        times = self._recent.pop(caller, None) or deque()
        self._recent[caller] = times  # as the last one, so that the first has been silent longest
        while len(self._recent) > MOST_CALLERS:
            del self._recent[next(iter(self._recent))]
        while times and now - times[0] > MINUTE:
            times.popleft()
        if len(times) >= most:
            wait = int(MINUTE - (now - times[0])) + 1
            raise RequestError(f"More than {most} requests in a minute.", None, 429, "rate_limit_exceeded", wait)
        times.append(now)

    def _log(self, scope: Scope, record: Record, status: int, caller: str | None) -> None:
        known: dict[str, Any] = {
            "id": record.id,
            "client": (scope.get("client") or [None])[0],
            "key": caller,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(time.perf_counter() - record.started, 4),
        }
        if record.model is not None:
            first = None if record.first_token is None else round(record.first_token, 4)
            known |= {
                "model": record.model,
                "stream": record.stream,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "completion_tokens": record.completion_tokens,
                "first_token": first,
                "finish_reason": record.finish_reason,
            }
        if record.error is not None:
            known["error"] = record.error
        if record.body is not None:
            known["body"] = record.body
        self.service.log.write(**known)
