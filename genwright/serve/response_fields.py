"""The fields of OpenAI's responses as data."""

from genwright.serve.field_checks import Schema
from genwright.serve.request_fields import COUNT, FLAG, LABEL_FIELDS, NAME, OBJECT, SAMPLING, TEXT

_ID: Schema = TEXT
_STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
INPUT_TEXT: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["input_text", "output_text", "text"]},
        "text": TEXT,
        "annotations": {"type": "array", "maxItems": 0},
        "logprobs": {"type": "array"},
    },
    "required": ["type", "text"],
}
MESSAGE_ITEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["message"]},
        "id": _ID,
        "status": _STATUS,
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": INPUT_TEXT}]},
    },
    "required": ["role", "content"],
}
CALL_ITEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function_call"]},
        "id": _ID,
        "status": _STATUS,
        "call_id": NAME,
        "name": NAME,
        "arguments": TEXT,
    },
    "required": ["type", "call_id", "name", "arguments"],
}
OUTPUT_ITEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function_call_output"]},
        "id": _ID,
        "status": _STATUS,
        "call_id": NAME,
        "output": {"anyOf": [TEXT, {"type": "array", "items": INPUT_TEXT}]},
    },
    "required": ["type", "call_id", "output"],
}
FORMAT: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "name": NAME,
        "description": TEXT,
        "schema": OBJECT,
        "strict": FLAG,
    },
    "required": ["type"],
}
RESPONSE: dict[str, Schema] = {
    "input": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"anyOf": [MESSAGE_ITEM, CALL_ITEM, OUTPUT_ITEM]}, "minItems": 1},
        ]
    },
    "model": NAME,
    "instructions": TEXT,
    "stream": FLAG,
    "stream_options": {
        "type": "object",
        "properties": {"include_obfuscation": {"enum": [False]}},
    },
    "max_output_tokens": COUNT,
    **{name: SAMPLING[name] for name in SAMPLING if name not in ("n", "prompt_logprobs", "stop")},
    **LABEL_FIELDS,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 100},
    "include": {"type": "array", "items": {"enum": ["message.output_text.logprobs"]}},
    "text": {"type": "object", "properties": {"format": FORMAT}, "additionalProperties": False},
    "tools": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "type": {"enum": ["function"]},
                "name": NAME,
                "description": TEXT,
                "parameters": OBJECT,
                "strict": FLAG,
            },
            "required": ["type", "name"],
        },
    },
    "tool_choice": {
        "anyOf": [
            {"type": "string", "enum": ["none", "auto", "required"]},
            {
                "type": "object",
                "properties": {"type": {"enum": ["function"]}, "name": NAME},
                "required": ["type", "name"],
            },
        ]
    },
    "parallel_tool_calls": FLAG,
    "truncation": {"enum": ["disabled"]},
    "background": {"enum": [False]},
}
