"""Checks values of a request against JSON-schema fragments, from which /openapi.json is written too.

An object that has `properties` has no others, unless its schema says so.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from genwright.arguments import short
from genwright.serve.http_errors import RequestError

Schema = Mapping[str, Any]
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


def object_of(properties: Mapping[str, Schema], *required: str) -> Schema:
    """The schema of an object that has these fields and no others."""
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(items: Schema, **limits: int) -> Schema:
    """The schema of a list; `limits` are minItems and maxItems."""
    return {"type": "array", "items": items, **limits}


def one_of(*values: Any) -> Schema:
    """The schema of a value that is one of these."""
    return {"enum": list(values)}


def check(value: Any, schema: Schema, path: str) -> None:
    """Raise a RequestError that names the place of the first value that the schema does not allow."""
    if "anyOf" in schema:
        _check_any(value, schema["anyOf"], path)
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(each if isinstance(each, str) else json.dumps(each) for each in schema["enum"])
        one_of = "one of " if len(schema["enum"]) > 1 else ""
        raise RequestError(f"{path} must be {one_of}{allowed}, not {_shown(value)}.", path)
    kind = schema.get("type")
    if kind is not None and not _is_kind(value, kind):
        raise RequestError(f"{path} must be {describe(schema)}, not {_shown(value)}.", path)
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high:
            raise RequestError(f"{path} must be {describe(schema)}, not {_shown(value)}.", path)
    elif kind == "string" and len(value) < schema.get("minLength", 0):
        raise RequestError(f"{path} must not be empty.", path)
    elif kind == "array":
        _check_list(value, schema, path)
    elif kind == "object":
        _check_object(value, schema, path)


def describe(schema: Schema) -> str:
    """A schema in words."""
    if "anyOf" in schema:
        return " or ".join(describe(each) for each in schema["anyOf"])
    words = _WORDS.get(schema.get("type", ""), "a value")
    if "minimum" in schema and "maximum" in schema:
        return f"{words} between {schema['minimum']:,} and {schema['maximum']:,}"
    if "minimum" in schema:
        return f"{words} of at least {schema['minimum']:,}"
    if schema.get("type") == "array" and "type" in schema.get("items", {}):
        return f"a list of {_WORDS[schema['items']['type']].split(' ', 1)[-1]}s"
    return words


def _shown(value: Any) -> str:
    """A value in a sentence, with JSON's words."""
    return json.dumps(value) if value is None or isinstance(value, bool) else short(value)


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])


def _check_any(value: Any, schemas: list[Schema], path: str) -> None:
    """One of several schemas must allow the value; the error is that of the one whose type is right."""
    same = [each for each in schemas if "type" not in each or _is_kind(value, each["type"])]
    if not same:
        raise RequestError(f"{path} must be {describe({'anyOf': schemas})}, not {_shown(value)}.", path)
    if isinstance(value, dict) and len(same) > 1:
        same = _of_type(value, same, path)
    errors = []
    for schema in same:
        try:
            check(value, schema, path)
            return
        except RequestError as error:
            errors.append(error)
    raise max(errors, key=lambda error: len(error.param or ""))  # the one that came furthest


def _of_type(value: dict[str, Any], schemas: list[Schema], path: str) -> list[Schema]:
    """The schemas of objects whose `type` is that of the value; those that do not need one are for values without."""
    kind = value.get("type")
    if kind is None:
        return [schema for schema in schemas if "type" not in schema["required"]] or schemas
    found = [schema for schema in schemas if kind in schema["properties"]["type"]["enum"]]
    if not found:
        kinds = [each for schema in schemas for each in schema["properties"]["type"]["enum"]]
        check(kind, {"enum": kinds}, f"{path}.type")
    return found


def _check_list(value: list[Any], schema: Schema, path: str) -> None:
    high = schema.get("maxItems", len(value))
    if len(value) < schema.get("minItems", 0):  # which is 1 wherever it is given
        raise RequestError(f"{path} must not be empty.", path)
    if len(value) > high:
        raise RequestError(f"{path} must have at most {high} elements, not {len(value)}.", path)
    items = schema.get("items")
    if items is None or (items == {"type": "integer"} and all(type(each) is int for each in value)):
        return
    for index, each in enumerate(value):
        check(each, items, f"{path}[{index}]")


def _check_object(value: dict[str, Any], schema: Schema, path: str) -> None:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if "type" in properties and value.get("type") is not None:  # on which the other fields depend
        check(value["type"], properties["type"], _join(path, "type"))
    for name in schema.get("required", ()):
        if value.get(name) is None:
            raise RequestError(f"{_join(path, name)} is missing.", _join(path, name))
    others = schema.get("additionalProperties", not properties)
    for name, each in value.items():
        place = _join(path, name)
        if each is None and properties:
            continue  # null stands for a field that is not there
        if name in properties:
            check(each, properties[name], place)
        elif others is False:
            close = get_close_matches(name, properties, 1)
            hint = f"; did you mean {close[0]}?" if close else ", or this server does not serve it."
            raise RequestError(f"There is no parameter {short(place)}{hint}", place[:200])
        elif others is not True:
            check(each, others, place)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
