"""Requests from a handler's source and from an OpenAPI schema."""

import email
import json
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.value_choices import TEXT
from genwright.inspect.surroundings.visitor import Visitor
from genwright.inspect.surroundings.web_requests import Request, by_schema, by_source, paths_in

VISITOR = Visitor([], {}, lambda *_: None)


def handler(request: Any, data: dict[str, Any], os: Any) -> Any:
    if request.path == "/v1/ask":
        token = os.environ["TOKEN"], request.headers.get("X-Key")
        return data["prompt"], int(data["beams"]), data.get("top", 7), data.get("messages"), request.args["q"], token
    return request.form.get("name"), request.files["picture"]


def test_what_a_source_reads() -> None:
    request = by_source(handler, "POST", "/v1/ask", VISITOR)
    message = {"role": "user", "content": TEXT}
    assert request.data == {"prompt": TEXT, "beams": 1, "top": 7, "messages": [message]}
    assert request.query == {"q": TEXT} and request.form == {"name": TEXT} and list(request.files) == ["picture"]
    assert paths_in(handler) == ["/v1/ask"] and paths_in(len) == ["/"]
    assert by_source(handler, "GET", "/", Visitor([], {"prompt": "mine"}, lambda *_: None)).query["prompt"] == "mine"
    assert by_source(len, "POST", "/", VISITOR) == Request("POST", "/")


def test_bodies(tmp_path: Path) -> None:
    assert Request("GET", "/a b", {"q": "x y"}).target == "/a%20b?q=x+y"
    assert Request("POST", "/", data={"a": 1}).body() == ("application/json", b'{"a": 1}')
    assert Request("POST", "/", form={"a": "b c"}).body() == ("application/x-www-form-urlencoded", b"a=b+c")
    (tmp_path / "f.bin").write_bytes(b"\r\n\x00")
    kind, body = Request("POST", "/", form={"a": "b"}, files={"f": tmp_path / "f.bin"}).body()
    first, second = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body).get_payload()  # type: ignore[misc]
    assert first.get_payload() == "b" and second.get_filename() == "f.bin"  # type: ignore[union-attr]
    assert second.get_payload(decode=True) == b"\r\n\x00"  # type: ignore[union-attr]


SCHEMA: dict[str, Any] = {
    "components": {
        "schemas": {
            "Style": {"type": "string", "enum": ["plain", "grand"]},
            "Message": {
                "type": "object",
                "properties": {"role": {"type": "string"}, "content": {"type": "string", "maxLength": 7}},
                "required": ["role", "content"],
            },
            "Ask": {
                "type": "object",
                "properties": {
                    "prompt": {"type": "string"},
                    "steps": {"type": "integer", "minimum": 3},
                    "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
                    "style": {"$ref": "#/components/schemas/Style"},
                    "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
                    "seed": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                    "fast": {"type": "boolean", "default": True},
                    "left": {"type": "string"},
                    "inner": {"$ref": "#/components/schemas/Ask"},
                },
                "required": ["prompt", "steps", "share", "style", "messages", "seed", "fast"],
            },
        }
    }
}
READ = Request("POST", "/ask", data={"prompt": "read"})


def requests(operation: dict[str, Any], path: str = "/ask", visitor: Visitor = VISITOR) -> list[Request]:
    return by_schema(operation, SCHEMA, READ, path, visitor)


def test_a_schema_is_filled() -> None:
    body = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Ask"}}}}}
    (request,) = requests(body)
    assert request.data == {
        "prompt": TEXT,
        "steps": 3,
        "share": 0.5,
        "style": "plain",
        "messages": [{"role": "user", "content": TEXT[:7]}],
        "seed": 1,
        "fast": True,
    }
    (given,) = requests(body, visitor=Visitor([], {"left": "x", "style": "grand"}, lambda *_: None))
    assert given.data["left"] == "x" and given.data["style"] == "grand"
    json.dumps(request.data)


def test_once_per_example() -> None:
    examples = {"a": {"value": {"prompt": "one"}}, "b": {"value": {"prompt": "two"}}}
    named = requests({"requestBody": {"content": {"application/json": {"schema": {}, "examples": examples}}}})
    listed = {"schema": {"type": "object", "examples": [{"prompt": "one"}, {"prompt": "two"}]}}
    for made in (named, requests({"requestBody": {"content": {"application/json": listed}}})):
        assert [r.data["prompt"] for r in made] == ["one", "two"]


def test_parameters_and_forms() -> None:
    parameters = [
        {"name": "n", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "text", "in": "query", "required": True, "schema": {"type": "string"}, "example": "shown"},
        {"name": "left", "in": "query", "schema": {"type": "string"}},
        {"name": "agent", "in": "header", "required": True, "schema": {"type": "string"}},
    ]
    (request,) = requests({"parameters": parameters}, "/items/{n}")
    assert (request.path, request.query) == ("/items/1", {"text": "shown"})
    assert request.data == {"prompt": "read"}  # the schema tells of no body, the source does
    properties = {"image": {"type": "string", "format": "binary"}, "name": {"type": "string"}}
    form = {"type": "object", "properties": properties, "required": ["image", "name"]}
    (request,) = requests({"requestBody": {"content": {"multipart/form-data": {"schema": form}}}})
    assert request.files["image"].is_file() and request.form == {"name": TEXT} and request.data is None
