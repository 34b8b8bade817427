"""An endpoint: reads the body as JSON, and turns what goes wrong into an answer of one sentence."""

import json
import re
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from genwright.errors import UserError
from genwright.serve.field_checks import Schema
from genwright.serve.generation import ClientGone
from genwright.serve.http_errors import RequestError
from genwright.serve.request_fields import read_body
from genwright.serve.service import Record, Service
from genwright.serve.sse import EventStream, compact

Answer = dict[str, Any] | Response | EventStream
Handler = Callable[[Service, Request, dict[str, Any]], Awaitable[Answer]]


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(compact(value), status, headers, media_type="application/json")


class Endpoint:
    """An ASGI application for one path; `schema` describes its body, None if it has none."""

    def __init__(self, service: Service, handler: Handler, schema: Schema | None):
        self.service, self.handler, self.schema = service, handler, schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        record: Record = scope["record"]
        try:
            response = await self._answer(request, record)
        except (ClientGone, ClientDisconnect):
            response = Response(status_code=499)  # as nginx logs it; there is nobody to read it
        except RequestError as error:
            response = error_response(error, request.url.path, record)
        except UserError as error:
            response = error_response(RequestError(str(error), _named_param(str(error))), request.url.path, record)
        except Exception:
            traceback.print_exc()
            failed = RequestError("The server failed to answer this; its log has the reason.", status=500)
            response = error_response(failed, request.url.path, record)
        await response(scope, receive, send)

    async def _answer(self, request: Request, record: Record) -> Response | EventStream:
        given: dict[str, Any] = {}
        if self.schema is not None:
            body = await read_json(request, self.service.settings.body_bytes)
            if self.service.settings.log_prompts:
                record.body = body
            given = read_body(body, self.schema)
        answer = await self.handler(self.service, request, given)
        return json_response(answer) if isinstance(answer, dict) else answer


def error_response(error: RequestError, path: str, record: Record) -> Response:
    record.error = error.message
    return json_response(error.body(path), error.status, error.headers)


def _named_param(sentence: str) -> str | None:
    """The parameter that a sentence about sampling parameters or arguments begins with."""
    found = re.match(r"([a-z]+(?:_[a-z]+)*)\b(?= (?:must|of|is))", sentence)
    return found[1] if found else None


async def read_json(request: Request, limit: int) -> Any:
    """The body of a request; its size is checked before and while it arrives."""
    too_large = RequestError(f"The body has more than {limit / 1e6:g} MB, which is the most.", None, 413)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > limit:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise too_large
    request.scope["record"].body_bytes = len(data)
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not UTF-8 text: byte {error.start} is invalid.") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")
