"""The fields of each endpoint's body as data: their schemas, and the sampling parameters that they set."""

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, get_args

from genwright.serve.field_checks import Schema, check, list_of, object_of, one_of
from genwright.serve.http_errors import RequestError
from genwright.text.engine.request import SamplingParams

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 1 << 30}
OBJECT: Schema = {"type": "object"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
IDS: Schema = list_of({"type": "integer"})
ONE_OR_MORE_TEXTS: Schema = {"anyOf": [NAME, list_of(NAME, maxItems=64)]}


def _sampling(name: str) -> Schema:
    """The schema of a field of SamplingParams."""
    field = next(each for each in fields(SamplingParams) if each.name == name)
    kind: Any = get_args(field.type)[0] if isinstance(field.type, UnionType) else field.type
    schema = {"type": {float: "number", int: "integer", bool: "boolean", str: "string"}[kind]}
    if field.metadata["between"]:
        schema |= dict(zip(("minimum", "maximum"), field.metadata["between"], strict=True))
    return {**schema, "description": field.metadata["help"]}


# Fields that have the name of a sampling parameter; the last row is ours, the others OpenAI's.
SAMPLING: dict[str, Schema] = {
    name: _sampling(name)
    for name in (
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n"),
        *("top_k", "min_p", "repetition_penalty", "min_new_tokens", "ignore_eos", "prompt_logprobs"),
    )
} | {
    "stop": ONE_OR_MORE_TEXTS,
    "stop_ids": IDS,
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -1e30, "maximum": 1e30}},
    "regex": {**NAME, "description": "The answer must match this regular expression."},
    "grammar": {**NAME, "description": "The answer must follow this grammar, in Lark or GBNF."},
}
# Labels of requests, which change nothing in an answer, and the one value of others that we can serve.
LABEL_FIELDS: dict[str, Schema] = {
    "user": TEXT,
    "metadata": LABELS,
    "store": one_of(False),
    "service_tier": one_of("auto", "default"),
    "safety_identifier": TEXT,
    "prompt_cache_key": TEXT,
}
STREAMING: dict[str, Schema] = {
    "stream": FLAG,
    "stream_options": object_of({"include_usage": FLAG, "include_obfuscation": one_of(False)}),
}
FUNCTION = object_of({"name": NAME, "description": TEXT, "parameters": OBJECT, "strict": FLAG}, "name")
TEXT_PART = object_of({"type": one_of("text"), "text": TEXT}, "type", "text")
TOOL_CALL = object_of(
    {
        "id": NAME,
        "type": one_of("function"),
        "function": object_of({"name": NAME, "arguments": TEXT}, "name", "arguments"),
    },
    *("id", "function"),
)
MESSAGE = object_of(
    {
        "role": one_of("system", "developer", "user", "assistant", "tool"),
        "content": {"anyOf": [TEXT, list_of(TEXT_PART)]},
        "name": TEXT,
        "refusal": TEXT,
        "annotations": list_of({}, maxItems=0),
        "tool_calls": list_of(TOOL_CALL),
        "tool_call_id": NAME,
    },
    "role",
)
JSON_SCHEMA = object_of({"name": NAME, "description": TEXT, "schema": OBJECT, "strict": FLAG}, "schema")
TOOL_CHOICE: Schema = {"type": "string", "enum": ["none", "auto", "required"]}
CHAT: dict[str, Schema] = {
    "messages": list_of(MESSAGE, minItems=1),
    "model": NAME,
    **STREAMING,
    **SAMPLING,
    **LABEL_FIELDS,
    "max_completion_tokens": COUNT,
    "max_tokens": COUNT,
    "logprobs": FLAG,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 100},
    "response_format": object_of(
        {"type": one_of("text", "json_object", "json_schema"), "json_schema": JSON_SCHEMA, "schema": OBJECT}, "type"
    ),
    "tools": list_of(object_of({"type": one_of("function"), "function": FUNCTION}, "type", "function")),
    "tool_choice": {
        "anyOf": [
            TOOL_CHOICE,
            object_of({"type": one_of("function"), "function": object_of({"name": NAME}, "name")}, "type", "function"),
        ]
    },
    "parallel_tool_calls": FLAG,
    "modalities": one_of(["text"]),
}
PROMPT: Schema = {
    "anyOf": [
        TEXT,
        {**IDS, "minItems": 1},
        list_of({"anyOf": [TEXT, {**IDS, "minItems": 1}]}, minItems=1, maxItems=2048),
    ]
}
COMPLETION: dict[str, Schema] = {
    "prompt": PROMPT,
    "model": NAME,
    **STREAMING,
    **SAMPLING,
    "user": TEXT,
    "max_tokens": {"type": "integer", "minimum": 0, "maximum": 1 << 30},
    "logprobs": {"type": "integer", "minimum": 0, "maximum": 100},
    "echo": FLAG,
    "best_of": one_of(1),
}
# Parameters of these APIs that cannot be served, with what to do instead.
REFUSED = {
    "best_of": "best_of is not supported; ask for n answers and choose among them.",
    "suffix": "suffix is not supported, because the model completes texts only at their end.",
    "functions": "functions is not supported; pass tools.",
    "function_call": "function_call is not supported; pass tool_choice.",
    "audio": "audio is not supported; this server writes text.",
    "prediction": "prediction is not supported; start the server with --draft prompt-lookup.",
    "web_search_options": "web_search_options is not supported; this server has no tools of its own.",
    "reasoning_effort": "reasoning_effort is not supported by this model.",
    "previous_response_id": "previous_response_id is not supported, because this server keeps no responses; "
    "send the whole conversation as input.",
    "conversation": "conversation is not supported, because this server keeps no conversations; send it as input.",
    "thinking": "thinking is not supported by this model.",
    "mcp_servers": "mcp_servers is not supported; this server calls no others.",
    "container": "container is not supported; this server runs no code.",
}


def read_body(body: Any, schema: Schema) -> dict[str, Any]:
    """The fields of a body that are not null; raises a RequestError that names the first wrong one."""
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.")
    for name, value in body.items():
        allowed = schema["properties"].get(name)
        if name in REFUSED and value is not None and (allowed is None or value not in allowed.get("enum", [value])):
            raise RequestError(REFUSED[name], name, code="unsupported_parameter")
    check(body, schema, "")
    return {name: value for name, value in body.items() if value is not None}


def sampling_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters among the fields of a body."""
    found = {name: given[name] for name in SAMPLING if name in given}
    if "stop" in found:
        found["stop"] = (found["stop"],) if isinstance(found["stop"], str) else tuple(found["stop"])
    if "stop_ids" in found:
        found["stop_ids"] = tuple(found["stop_ids"])
    if "logit_bias" in found:
        found["logit_bias"] = {_token_id(token): bias for token, bias in found["logit_bias"].items()}
    return found


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RequestError(f"The keys of logit_bias must be token ids, not {text[:60]!r}.", "logit_bias")
    return int(text)


def constraint(given: Mapping[str, Any], schema: Any, source: str) -> dict[str, Any]:
    """The one of schema, regex and grammar that constrains the answer; `source` is the field that has the schema."""
    asked = {name: given[name] for name in ("regex", "grammar") if name in given}
    if schema is not None:
        asked["schema"] = schema
    if len(asked) > 1:
        names = ", ".join(source if name == "schema" else name for name in asked)
        raise RequestError(f"Only one of {names} can be given.", "regex" if "regex" in asked else "grammar")
    return asked


def response_schema(form: Mapping[str, Any] | None, source: str = "response_format") -> Any:
    """The JSON schema that a response format asks for; None for plain text."""
    if form is None or form["type"] == "text":
        return None
    if form["type"] == "json_object":
        return form.get("schema") or {"type": "object"}
    if "json_schema" not in form:
        raise RequestError(f"{source}.json_schema is missing.", f"{source}.json_schema")
    return form["json_schema"]["schema"]
