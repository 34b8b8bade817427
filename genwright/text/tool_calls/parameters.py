"""Parameters of tool calls that are written one by one, not as one JSON object: their schemas and their values."""

import ast
import json
from typing import Any

from genwright.errors import UserError

# Keywords that concern several parameters at once.
JOINT = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties", "maxProperties")
_JSON_WORDS = {"true": True, "false": False, "null": None}
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "$defs", "definitions"}  # and the type itself


def parameter_schemas(function: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The schema of each of a function's parameters, with the definitions that it may refer to."""
    schema = function.get("parameters") or {}
    properties, name = schema.get("properties", {}), function["name"]
    if joint := next((key for key in JOINT if key in schema), None):
        raise UserError(f"tools: The keyword {joint} of the parameters of {name} is not supported for this model.")
    if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
        raise UserError(f"tools: The properties of the parameters of {name} must be an object of schemas.")
    if missing := next((key for key in required_parameters(function) if key not in properties), None):
        raise UserError(f"tools: The parameter {missing!r} of {name} is required, but is not one of its properties.")
    if wrong := next((key for key in properties if not key.isprintable() or set(key) & set("=<>")), None):
        raise UserError(f"tools: The parameter name {wrong!r} of {name} is not supported for this model.")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {
        key: {**shared, **each} if isinstance(each, dict) else ({} if each else {"not": {}})
        for key, each in properties.items()
    }


def required_parameters(function: dict[str, Any]) -> list[str]:
    """The names of the parameters that every call must have."""
    required = (function.get("parameters") or {}).get("required")
    return required if isinstance(required, list) else []


def is_any(kind: str, schema: dict[str, Any]) -> bool:
    """Whether every value of a type is allowed, and nothing else; any string is written without quotes."""
    return schema.get("type") == kind and schema.keys() <= _ANNOTATIONS


def plain_choices(schema: dict[str, Any]) -> list[str]:
    """The values of a parameter that is one of some texts, which are then written without quotes; else none."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    others = schema.keys() - _ANNOTATIONS - {"enum", "const"}
    texts = isinstance(choices, list) and all(isinstance(each, str) for each in choices)
    return list(choices) if texts and not others and schema.get("type", "string") == "string" else []


def typed_value(text: str, schema: dict[str, Any]) -> str:
    """The JSON of a value that may be written as JSON, as Python writes it, or as text without quotes."""
    if is_any("string", schema) or text in plain_choices(schema):
        return json.dumps(text, ensure_ascii=False)
    try:
        value = literal_as_json(text)
        if schema.get("type") != "string" or value.startswith('"'):
            return value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    return json.dumps(text, ensure_ascii=False)


def literal_as_json(text: str) -> str:
    """A literal of JSON or Python, or a mixture of both, as JSON; raises ValueError and the errors of `ast.parse`."""
    try:
        json.loads(text, parse_constant=_refuse)
        return text.strip()
    except ValueError:
        value = ast.literal_eval(_Words().visit(ast.parse(text.strip(), mode="eval")))
    try:
        return json.dumps(value, allow_nan=False)
    except TypeError as error:  # bytes, sets and the like
        raise ValueError(str(error)) from None


class _Words(ast.NodeTransformer):
    """Replaces the words that JSON has and Python has not."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no {word}")
