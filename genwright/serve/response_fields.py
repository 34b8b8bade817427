"""The fields of OpenAI's responses as data."""

from genwright.serve.field_checks import Schema, list_of, object_of, one_of
from genwright.serve.request_fields import (
    COUNT,
    FLAG,
    FUNCTION,
    LABEL_FIELDS,
    NAME,
    OBJECT,
    SAMPLING,
    TEXT,
    TOOL_CHOICE,
)

# An item of an earlier response may be sent back as input, with what the response says about it.
_OF_RESPONSE = {"id": TEXT, "status": one_of("in_progress", "completed", "incomplete")}
INPUT_TEXT = object_of(
    {
        "type": one_of("input_text", "output_text", "text"),
        "text": TEXT,
        "annotations": list_of({}, maxItems=0),
        "logprobs": {"type": "array"},
    },
    *("type", "text"),
)
CONTENT: Schema = {"anyOf": [TEXT, list_of(INPUT_TEXT)]}
MESSAGE_ITEM = object_of(
    {
        "type": one_of("message"),
        **_OF_RESPONSE,
        "role": one_of("system", "developer", "user", "assistant"),
        "content": CONTENT,
    },
    *("role", "content"),
)
CALL_ITEM = object_of(
    {"type": one_of("function_call"), **_OF_RESPONSE, "call_id": NAME, "name": NAME, "arguments": TEXT},
    *("type", "call_id", "name", "arguments"),
)
OUTPUT_ITEM = object_of(
    {"type": one_of("function_call_output"), **_OF_RESPONSE, "call_id": NAME, "output": CONTENT},
    *("type", "call_id", "output"),
)
FORMAT = object_of(
    {
        "type": one_of("text", "json_object", "json_schema"),
        "name": NAME,
        "description": TEXT,
        "schema": OBJECT,
        "strict": FLAG,
    },
    "type",
)
RESPONSE: dict[str, Schema] = {
    "input": {"anyOf": [NAME, list_of({"anyOf": [MESSAGE_ITEM, CALL_ITEM, OUTPUT_ITEM]}, minItems=1)]},
    "model": NAME,
    "instructions": TEXT,
    "stream": FLAG,
    "stream_options": object_of({"include_obfuscation": one_of(False)}),
    "max_output_tokens": COUNT,
    **{name: SAMPLING[name] for name in SAMPLING if name not in ("n", "prompt_logprobs", "stop")},
    **LABEL_FIELDS,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 100},
    "include": list_of(one_of("message.output_text.logprobs")),
    "text": object_of({"format": FORMAT}),
    "tools": list_of(object_of({"type": one_of("function"), **FUNCTION["properties"]}, "type", "name")),
    "tool_choice": {"anyOf": [TOOL_CHOICE, object_of({"type": one_of("function"), "name": NAME}, "type", "name")]},
    "parallel_tool_calls": FLAG,
    "truncation": one_of("disabled"),
    "background": one_of(False),
}
