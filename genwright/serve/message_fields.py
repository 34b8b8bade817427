"""The fields of Anthropic's messages as data."""

from genwright.serve.field_checks import Schema, list_of, object_of, one_of
from genwright.serve.request_fields import COUNT, FLAG, NAME, OBJECT, SAMPLING, TEXT

CACHE_CONTROL = {"cache_control": OBJECT}  # accepted everywhere; this server's prefix cache needs no marks
TEXT_BLOCK = object_of({"type": one_of("text"), "text": TEXT, **CACHE_CONTROL}, "type", "text")
TEXT_OR_BLOCKS: Schema = {"anyOf": [TEXT, list_of(TEXT_BLOCK)]}
TOOL_USE_BLOCK = object_of(
    {"type": one_of("tool_use"), "id": NAME, "name": NAME, "input": OBJECT, **CACHE_CONTROL},
    *("type", "id", "name", "input"),
)
TOOL_RESULT_BLOCK = object_of(
    {
        "type": one_of("tool_result"),
        "tool_use_id": NAME,
        "content": TEXT_OR_BLOCKS,
        "is_error": FLAG,
        **CACHE_CONTROL,
    },
    *("type", "tool_use_id"),
)
BLOCK: Schema = {"anyOf": [TEXT_BLOCK, TOOL_USE_BLOCK, TOOL_RESULT_BLOCK]}
MESSAGE = object_of(
    {"role": one_of("user", "assistant"), "content": {"anyOf": [TEXT, list_of(BLOCK)]}}, "role", "content"
)
TOOL = object_of(
    {
        "type": one_of("custom"),
        "name": NAME,
        "description": TEXT,
        "input_schema": OBJECT,
        "strict": FLAG,
        **CACHE_CONTROL,
    },
    *("name", "input_schema"),
)
MESSAGES: dict[str, Schema] = {
    "model": NAME,
    "messages": list_of(MESSAGE, minItems=1),
    "system": TEXT_OR_BLOCKS,
    "max_tokens": COUNT,
    "stop_sequences": list_of(NAME, maxItems=64),
    "stream": FLAG,
    "temperature": SAMPLING["temperature"],
    "top_k": SAMPLING["top_k"],
    "top_p": SAMPLING["top_p"],
    "tools": list_of(TOOL),
    "tool_choice": {
        "anyOf": [
            object_of({"type": one_of("auto", "any", "none"), "disable_parallel_tool_use": FLAG}, "type"),
            object_of({"type": one_of("tool"), "name": NAME, "disable_parallel_tool_use": FLAG}, "type", "name"),
        ]
    },
    "output_config": object_of(
        {"format": object_of({"type": one_of("json_schema"), "schema": OBJECT}, "type", "schema")}
    ),
    **CACHE_CONTROL,
    "speed": one_of("standard"),
    "thinking": one_of({"type": "disabled"}),
    "metadata": object_of({"user_id": TEXT}),
    "service_tier": one_of("auto", "standard_only"),
}
