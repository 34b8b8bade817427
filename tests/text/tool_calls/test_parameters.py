"""Values of parameters in tags have the types that the tool's schema gives them."""

import json

import pytest

from genwright.text.tool_calls import parse_tool_calls

TYPES = {
    "code": {"type": "string", "description": "raw"},
    "unit": {"enum": ["1", "2"]},
    "zip": {"type": "string", "pattern": "^[0-9]+$"},
    "note": {"type": ["string", "null"]},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "all": True,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": TYPES}}}]


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("code", '3 "</parameter>" \\n\n\ttrue', '3 "</parameter>" \\n\n\ttrue'),
        ("code", "", ""),
        ("unit", "1", "1"),
        ("zip", '"001"', "001"),
        ("zip", "001", "001"),
        ("zip", "1", "1"),
        ("note", '"a"', "a"),
        ("note", "a b", "a b"),
        ("note", "null", None),
        ("count", "12345678901234567890", 12345678901234567890),
        ("count", "many", "many"),
        ("flag", "True", True),
        ("list", "['a', None]", ["a", None]),
        ("list", "[" * 9999, "[" * 9999),
        ("all", "NaN", "NaN"),
        ("other", "{}", {}),
    ],
)
def test_values_in_tags_have_the_types_of_the_schema(key, written, value):
    answer = f"<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n</tool_call>"
    for text in (answer, answer.removeprefix("<tool_call>\n")):
        said, calls = parse_tool_calls(text, "qwen3-coder", TOOLS)
        assert not said and [json.loads(call.arguments) for call in calls] == [{key: value}]
