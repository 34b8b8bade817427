"""The application: every path with its endpoint, behind the guards."""

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from genwright.serve import (
    chat_completions,
    completions,
    embeddings,
    images,
    messages,
    responses,
    tokenize,
)
from genwright.serve.endpoint import Endpoint, Handler, error_response, json_response
from genwright.serve.field_checks import Schema
from genwright.serve.guards import Guards
from genwright.serve.http_errors import RequestError
from genwright.serve.metrics import CONTENT_TYPE
from genwright.serve.openapi import openapi
from genwright.serve.page_response import Page
from genwright.serve.service import Service


async def health(service: Service, request: Request, given: dict[str, Any]) -> Response:
    """Fails while there is no engine."""
    ready = service.engine.ready
    return json_response({"status": "ok" if ready else "The engine is not running."}, 200 if ready else 503)


async def ready(service: Service, request: Request, given: dict[str, Any]) -> Response:
    """Fails while no request would be accepted."""
    try:
        service.engine.check_ready()
    except RequestError as error:
        return json_response({"status": error.message}, 503, error.headers)
    return json_response({"status": "ready"})


async def metrics(service: Service, request: Request, given: dict[str, Any]) -> Response:
    return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def models(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """The models' names; `context_window` is ours."""
    text = [{"context_window": service.engine.facts.max_context, **_model(service, name)} for name in service.names]
    images = [] if service.image_name is None else [_model(service, service.image_name)]
    if images:
        images[0]["classes"] = service.engine.facts.classes
    return {"object": "list", "data": [*text, *images]}


async def model(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    listed: list[dict[str, Any]] = (await models(service, request, given))["data"]
    name = request.path_params["name"]
    for each in listed:
        if each["id"] == name:
            return each
    raise RequestError(f"There is no model {name[:100]!r} here.", "model", 404, "model_not_found")


def _model(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.created, "owned_by": "genwright"}


async def openapi_json(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """This description."""
    return openapi(ENDPOINTS)


# Method, path, endpoint, and the schema of its body.
ENDPOINTS: tuple[tuple[str, str, Handler, Schema | None], ...] = (
    ("POST", "/v1/chat/completions", chat_completions.chat_completions, chat_completions.SCHEMA),
    ("POST", "/v1/completions", completions.completions, completions.SCHEMA),
    ("POST", "/v1/responses", responses.responses, responses.SCHEMA),
    ("POST", "/v1/messages", messages.messages, messages.SCHEMA),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens, messages.COUNT_SCHEMA),
    ("POST", "/v1/embeddings", embeddings.embeddings, embeddings.SCHEMA),
    ("POST", "/v1/images/generations", images.images, images.SCHEMA),
    ("POST", "/tokenize", tokenize.tokenize, tokenize.TOKENIZE),
    ("POST", "/detokenize", tokenize.detokenize, tokenize.DETOKENIZE),
    ("POST", "/apply-template", tokenize.apply_template, tokenize.APPLY_TEMPLATE),
    ("GET", "/v1/models", models, None),
    ("GET", "/v1/models/{name:path}", model, None),
    ("GET", "/health", health, None),
    ("GET", "/ready", ready, None),
    ("GET", "/metrics", metrics, None),
    ("GET", "/openapi.json", openapi_json, None),
)


def new_app(service: Service) -> Starlette:
    """The ASGI application of a service."""
    endpoints = [*ENDPOINTS, ("GET", "/", Page().answer, None)]
    routes = [
        Route(path, Endpoint(service, handler, schema), methods=[method]) for method, path, handler, schema in endpoints
    ]
    middleware = [Middleware(Guards, service=service)]
    if service.settings.cors:
        cors = Middleware(
            CORSMiddleware, allow_origins=list(service.settings.cors), allow_methods=["*"], allow_headers=["*"]
        )
        middleware.insert(0, cors)
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _http_error})


async def _http_error(request: Request, error: Exception) -> Response:
    """Of the router: no such path, or another method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path[:200], request.method
    sentence = f"There is no {path} here." if error.status_code == 404 else f"{path} has no method {method}."
    failed = RequestError(sentence, None, error.status_code)
    response = error_response(failed, request.url.path, request.scope["record"])
    response.headers.update(error.headers or {})
    return response
