"""GET /openapi.json: the description of all endpoints, from the same tables that check their bodies."""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from genwright.serve.field_checks import Schema

ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
REASONS = {
    "400": "The request is wrong; the message says what and where.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "413": "The body is too large.",
    "429": "Too many requests in a minute.",
    "503": "The queue is full, or there is no engine now; Retry-After says when to try again.",
    "504": "The request took longer than the server allows.",
}
_DOWN = {"503": {"description": "Not now; the status says why."}}


def openapi(endpoints: Iterable[tuple[str, str, Callable[..., Any], Schema | None]]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for method, path, handler, schema in endpoints:
        shown = path.replace(":path}", "}")
        paths.setdefault(shown, {})[method.lower()] = _operation(method, shown, handler, schema)
    security = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Genwright", "version": version("genwright"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": security},
        "security": [{}, {"bearer": []}],
    }


def _operation(method: str, path: str, handler: Callable[..., Any], schema: Schema | None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    failures: dict[str, Any] = {
        status: {"description": text, "content": error}
        for status, text in REASONS.items()
        if schema is not None or status == "401" or ("{" in path and status == "404")
    }
    if path in ("/health", "/ready"):
        failures = _DOWN
    found: dict[str, Any] = {
        "operationId": handler.__name__,
        "summary": " ".join((handler.__doc__ or f"{method} {path}").split()),
        "responses": {"200": {"description": "The answer; with `stream`, server-sent events."}, **failures},
    }
    if "{" in path:
        name = path.partition("{")[2].partition("}")[0]
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if schema is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _nullable(schema)}}}
    return found


def _nullable(schema: Schema) -> dict[str, Any]:
    """A body's schema, whose optional fields may be null."""
    found = closed(schema)
    for name, each in found["properties"].items():
        if name not in schema["required"]:
            found["properties"][name] = {"anyOf": [each, {"type": "null"}]}
    return found


def closed(schema: Any) -> Any:
    """A schema whose objects say that they have no other properties."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "properties" not in schema:
        return {name: value if name == "enum" else closed(value) for name, value in schema.items()}
    properties = {name: closed(each) for name, each in schema["properties"].items()}
    return {"additionalProperties": False, **schema, "properties": properties}
