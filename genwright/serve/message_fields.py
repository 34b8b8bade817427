"""The fields of Anthropic's messages as data."""

from genwright.serve.field_checks import Schema
from genwright.serve.request_fields import COUNT, FLAG, NAME, OBJECT, SAMPLING, TEXT

CACHE_CONTROL: Schema = {"type": "object"}  # this server's prefix cache needs no marks
TEXT_BLOCK: Schema = {
    "type": "object",
    "properties": {"type": {"enum": ["text"]}, "text": TEXT, "cache_control": CACHE_CONTROL},
    "required": ["type", "text"],
}
TOOL_USE_BLOCK: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["tool_use"]},
        "id": NAME,
        "name": NAME,
        "input": OBJECT,
        "cache_control": CACHE_CONTROL,
    },
    "required": ["type", "id", "name", "input"],
}
TOOL_RESULT_BLOCK: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["tool_result"]},
        "tool_use_id": NAME,
        "content": {"anyOf": [TEXT, {"type": "array", "items": TEXT_BLOCK}]},
        "is_error": FLAG,
        "cache_control": CACHE_CONTROL,
    },
    "required": ["type", "tool_use_id"],
}
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["user", "assistant"]},
        "content": {
            "anyOf": [
                TEXT,
                {"type": "array", "items": {"anyOf": [TEXT_BLOCK, TOOL_USE_BLOCK, TOOL_RESULT_BLOCK]}},
            ]
        },
    },
    "required": ["role", "content"],
}
MESSAGES: dict[str, Schema] = {
    "model": NAME,
    "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
    "system": {"anyOf": [TEXT, {"type": "array", "items": TEXT_BLOCK}]},
    "max_tokens": COUNT,
    "stop_sequences": {"type": "array", "items": NAME, "maxItems": 64},
    "stream": FLAG,
    "temperature": SAMPLING["temperature"],
    "top_k": SAMPLING["top_k"],
    "top_p": SAMPLING["top_p"],
    "tools": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "type": {"enum": ["custom"]},
                "name": NAME,
                "description": TEXT,
                "input_schema": OBJECT,
                "strict": FLAG,
                "cache_control": CACHE_CONTROL,
            },
            "required": ["name", "input_schema"],
        },
    },
    "tool_choice": {
        "type": "object",
        "properties": {
            "type": {"enum": ["auto", "any", "tool", "none"]},
            "name": NAME,
            "disable_parallel_tool_use": FLAG,
        },
        "required": ["type"],
    },
    "output_config": {
        "type": "object",
        "properties": {
            "format": {
                "type": "object",
                "properties": {"type": {"enum": ["json_schema"]}, "schema": OBJECT},
                "required": ["type", "schema"],
            }
        },
    },
    "cache_control": CACHE_CONTROL,
    "speed": {"enum": ["standard"]},
    "thinking": {"enum": [{"type": "disabled"}]},
    "metadata": {"type": "object", "properties": {"user_id": TEXT}},
    "service_tier": {"enum": ["auto", "standard_only"]},
}
