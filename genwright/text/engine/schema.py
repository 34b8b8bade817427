"""JSON Schemas: what of a schema cannot be followed exactly is refused, with the place of its keyword."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError

# Where schemas are inside a schema: as a value, in a list, and in an object.
_VALUES = {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
_LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_OBJECTS = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
_OF_ROOT = ("$schema", "$id", "$defs", "definitions")  # what a part of a schema needs to be compiled alone

# What llguidance says of a schema, the keyword it means, and a sentence about it.
_REASONS = (
    ("oneOf", ("oneOf",), "is supported only where no value can match two of its schemas; use anyOf"),
    ("min/maxP", ("minProperties", "maxProperties"), "is supported only if all of the `properties` are required"),
    ("patternProperty", ("patternProperties",), "is supported only if no name can match two of its patterns"),
    ("regex", ("pattern", "patternProperties"), "is not a regular expression that is supported"),
    ("Resource|circular", ("$ref",), "cannot be followed"),
)


def check_schema(text: str) -> Any:
    """The schema of a JSON text; what llguidance would not follow exactly is refused."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The schema is not valid JSON: {one_line(str(error))}.") from None
    schema = {} if schema is True else schema
    if not isinstance(schema, dict):
        raise UserError(f"A schema must be a JSON object, or true, not {short(schema)}.")
    old = re.search("draft-0[3-7]", str(schema.get("$schema"))) is not None
    for path, part in subschemas(schema):
        if old and "$ref" in part:  # up to draft 7, keywords beside a reference are ignored
            for key in part.keys() - {"$ref", *_OF_ROOT}:
                del part[key]
        least, required = part.get("minProperties"), part.get("required")
        # The keys of further properties may repeat, and a parser keeps one of them.
        if isinstance(least, int) and least > 1 + len(required if isinstance(required, list) else ()):
            raise UserError(f"The schema's {path}/minProperties may be at most one more than the required properties.")
    return schema


def explain(schema: Any, error: str, compile_error: Callable[[Any], str]) -> str:
    """A sentence about a schema that does not compile; `compile_error` is the error of a part of it, empty if none."""
    if found := re.match(r"Unimplemented keys: (\[.*\])", error):
        keys = json.loads(found[1])
        path = _place(schema, error, compile_error, lambda part: all(key in part for key in keys))
        return f"The schema's keyword {path}/{keys[0]} is not supported."
    if found := re.match(r"Unknown format: (.*)", error):
        path = _place(schema, error, compile_error, lambda part: part.get("format") == found[1])
        return f"The schema's {path}/format {found[1]!r} is not supported."
    reason = next(((keywords, sentence) for start, keywords, sentence in _REASONS if re.match(start, error)), None)
    if reason is None:
        return f"The schema cannot be followed: {one_line(error)}."
    keywords, sentence = reason
    path = _place(schema, error, compile_error, lambda part: not part.keys().isdisjoint(keywords))
    key = next((key for key in keywords if key in _at(schema, path)), keywords[0])
    return f"The schema's {path}/{key} {sentence}."


def subschemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema with its JSON Pointer, in the order of the text, outer ones first."""
    waiting = [("#", schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        inner: list[tuple[str, Any]] = []
        for key, value in part.items():
            if key in _OBJECTS and isinstance(value, dict):
                inner += [(f"{path}/{key}/{_escaped(name)}", each) for name, each in value.items()]
            elif key in _LISTS and isinstance(value, list):
                inner += [(f"{path}/{key}/{index}", each) for index, each in enumerate(value)]
            elif key in _VALUES:
                inner.append((f"{path}/{key}", value))
        waiting += reversed(inner)


def _place(
    schema: Any, error: str, compile_error: Callable[[Any], str], matches: Callable[[dict[str, Any]], bool]
) -> str:
    """The path of the part that has the error: one that has it alone, else the first that matches."""
    paths = [(path, part) for path, part in subschemas(schema) if matches(part)]
    root = {key: schema[key] for key in _OF_ROOT if key in schema}
    alone = (path for path, part in reversed(paths) if compile_error({**root, **part}) == error)
    return next(alone, paths[0][0] if paths else "#") if len(paths) > 1 else paths[0][0] if paths else "#"


def _at(schema: Any, path: str) -> dict[str, Any]:
    return next(part for place, part in subschemas(schema) if place == path)


def _escaped(name: str) -> str:
    """A name in a JSON Pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def one_line(error: str) -> str:
    """The beginning of an error's text, to be a part of a sentence."""
    return " ".join(error.split())[:300].rstrip(".")
