"""Requests that a visitor would send: filled from a handler's source, or from the schema that FastAPI makes of it."""

import ast
import base64
import inspect
import json
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from genwright.inspect.surroundings.visitor import Visitor

_QUERY = ("args", "query_params", "values", "query", "GET")
_FORM = ("form", "values", "POST")
_NO_INPUT = ("headers", "environ", "cookies", "session", "config", "state")
_DEEPEST = 8
SHOWN = 2000  # bytes of an answer that are recorded
_BOUNDARY = "genwright-boundary-2f6c9d"


@dataclass
class Request:
    """One request; `files` are sent as uploads, `form` as a form, and `data` as JSON."""

    method: str
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    form: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def recorded(self) -> dict[str, Any]:
        """What is recorded of it."""
        held = {"query": self.query, "json": self.data, "form": self.form, "files": list(map(str, self.files.values()))}
        return {k: v for k, v in held.items() if v}

    @property
    def target(self) -> str:
        return quote(self.path) + (f"?{urlencode(self.query, doseq=True)}" if self.query else "")

    def body(self) -> tuple[str, bytes]:
        """The content's type and bytes."""
        if self.files:
            return _multipart(self.form, self.files)
        if self.form:
            return "application/x-www-form-urlencoded", urlencode(self.form, doseq=True).encode()
        if self.data is None:
            return "", b""
        return "application/json", json.dumps(self.data).encode()


def _multipart(form: dict[str, Any], files: dict[str, Path]) -> tuple[str, bytes]:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in form.items()
    ]
    for key, path in files.items():
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"; filename="{path.name}"\r\n'
        content = path.read_bytes() if path.is_file() else str(path).encode()
        parts.append(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + content + b"\r\n")
    return f"multipart/form-data; boundary={_BOUNDARY}", b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


def answer(request: Request, status: int, body: bytes) -> dict[str, Any]:
    """What is recorded of an answer; one that tells of an error is also printed."""
    if status >= 400:
        print(f"genwright: {request.method} {request.path} was answered with status {status}.", file=sys.stderr)
    return {"status": status, "body": body[:SHOWN].decode(errors="replace")}


def by_source(handler: Any, method: str, path: str, visitor: Visitor) -> Request:
    """A request with the keys that a handler's source reads: `request.args["n"]`, `data.get("prompt")` ..."""
    request = Request(method, path)
    text = source_of(handler)
    decodes = "b64decode" in text
    for owner, key, kind, default in _keys(text):
        if owner in _NO_INPUT:
            continue
        value = default if default else _plain(visitor.value(key, kind), decodes)
        if owner == "files":
            request.files[key] = Path(str(visitor.value(key, "path")))
        elif owner in _FORM and method != "GET":
            request.form[key] = value
        elif owner in _QUERY or method == "GET":
            request.query[key] = value
        else:
            request.data = {**(request.data or {}), key: [_message(visitor)] if key == "messages" else value}
    return request


def _message(visitor: Visitor) -> dict[str, Any]:
    return {"role": "user", "content": visitor.value("content")}


def _plain(value: Any, decodes: bool) -> Any:
    """A value for JSON; a file goes in base64 where the handler decodes that."""
    if decodes and isinstance(value, str) and Path(value).is_file():
        return base64.b64encode(Path(value).read_bytes()).decode()
    return value


def source_of(handler: Any) -> str:
    """A function's or class's source, or "" where there is none."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(handler)))
    except (OSError, TypeError):
        return ""


def paths_in(handler: Any) -> list[str]:
    """The paths that a handler's source compares with: texts such as "/generate"."""
    found = re.findall(r"""["'](/[\w\-./]*)["']""", source_of(handler))
    return list(dict.fromkeys(found)) or ["/"]


def _keys(text: str) -> list[tuple[str, str, str, Any]]:
    """Every text key that a source reads: the attribute it is read from, the key, its type and its default."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    kinds = {
        id(node.args[0]): node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1
    }
    found: dict[str, tuple[str, str, str, Any]] = {}
    for node in ast.walk(tree):
        default: Any = None
        kind = kinds.get(id(node), "")
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            held, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr not in ("get", "getlist", "pop"):
                continue
            held, key = node.func.value, node.args[0]
            default = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
            kind = next((ast.unparse(k.value) for k in node.keywords if k.arg == "type"), kind)
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            owner = held.attr if isinstance(held, ast.Attribute) else ""
            found.setdefault(key.value, (owner, key.value, kind if kind in ("int", "float", "bool") else "", default))
    return list(found.values())


def by_schema(
    operation: dict[str, Any], schema: dict[str, Any], read: Request, path: str, visitor: Visitor
) -> list[Request]:
    """The requests of one operation of an OpenAPI schema, one for each example of its body.

    `read` is what the handler's source reads, for a body that the schema does not tell.
    """
    fill = _Fill(schema.get("components", {}).get("schemas", {}), visitor)
    request = Request(read.method, path)
    for parameter in operation.get("parameters", []):
        if parameter.get("required") or parameter["name"] in visitor.arguments:
            value = fill.value({**parameter.get("schema", {}), **_example(parameter)}, parameter["name"])
            if parameter["in"] == "path":
                request.path = re.sub(rf"\{{{parameter['name']}(:\w+)?\}}", str(value), request.path)
            elif parameter["in"] == "query":
                request.query[parameter["name"]] = value
    contents = operation.get("requestBody", {}).get("content", {})
    if not contents:
        request.data, request.form, request.files = read.data, read.form, read.files
    for kind, content in contents.items():
        if kind == "application/json":
            return [Request(read.method, request.path, request.query, body) for body in fill.bodies(content)]
        for body in fill.bodies(content)[:1]:
            for key, value in body.items() if isinstance(body, dict) else ():
                held = value[0] if isinstance(value, list) and value else value
                if isinstance(held, Path):
                    request.files[key] = held
                else:
                    request.form[key] = value
    return [request]


def _example(parameter: dict[str, Any]) -> dict[str, Any]:
    return {k: parameter[k] for k in ("example",) if k in parameter}


class _Fill:
    """Values for JSON schemas."""

    def __init__(self, schemas: dict[str, Any], visitor: Visitor) -> None:
        self._schemas, self._visitor = schemas, visitor

    def bodies(self, content: dict[str, Any]) -> list[Any]:
        examples = content.get("examples")
        named = [e["value"] for e in examples.values() if "value" in e] if isinstance(examples, dict) else []
        schema = self._resolved(content.get("schema", {}))
        return named or list(schema.get("examples") or []) or [self.value(schema, "body")]

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        for _ in range(_DEEPEST):
            options = [s for key in ("anyOf", "oneOf", "allOf") for s in schema.get(key, []) if s.get("type") != "null"]
            if "$ref" in schema:
                inner = self._schemas.get(schema["$ref"].rpartition("/")[2], {})
            elif options:
                inner = options[0]
            else:
                break
            schema = inner | {k: v for k, v in schema.items() if k not in ("$ref", "anyOf", "oneOf", "allOf")}
        return schema

    def value(self, schema: dict[str, Any], name: str, depth: int = 0) -> Any:
        schema = self._resolved(schema)
        if name in self._visitor.arguments:
            return self._visitor.arguments[name]
        for key in ("example", "default", "const"):
            if schema.get(key) is not None:
                return schema[key]
        for key in ("examples", "enum"):
            if schema.get(key):
                return schema[key][0]
        kind = schema.get("type")
        if depth > _DEEPEST:
            return None
        if kind == "object" or "properties" in schema:
            required = set(schema.get("required", []))
            known = schema.get("properties", {})
            wanted = {k: s for k, s in known.items() if k in required or k in self._visitor.arguments}
            return {k: self.value(s, k, depth + 1) for k, s in wanted.items()}
        if kind == "array":
            return [self.value(schema.get("items", {}), name, depth + 1)] * max(1, schema.get("minItems", 1))
        if kind in ("integer", "number"):
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(max(1, least), schema.get("maximum", max(1, least)))
        if kind == "boolean":
            return False
        return self._text(schema, name)

    def _text(self, schema: dict[str, Any], name: str) -> Any:
        if schema.get("format") == "binary" or "contentMediaType" in schema:
            return Path(str(self._visitor.value(name, "path", schema.get("description", ""))))
        if name == "role":
            return "user"
        text = str(self._visitor.value(name, "str", schema.get("description", "")))
        return text[: schema.get("maxLength", len(text))]
