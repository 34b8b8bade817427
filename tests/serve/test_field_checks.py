"""The checks of bodies, beside the package jsonschema on the same schemas."""

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genwright.serve.field_checks import check, object_of
from genwright.serve.http_errors import RequestError
from genwright.serve.message_fields import MESSAGES
from genwright.serve.openapi import closed
from genwright.serve.request_fields import CHAT, COMPLETION, REFUSED, read_body
from genwright.serve.response_fields import RESPONSE

SCHEMAS = {
    "chat": object_of(CHAT, "messages"),
    "completion": object_of(COMPLETION, "prompt"),
    "response": object_of(RESPONSE, "input"),
    "message": object_of(MESSAGES, "model", "messages", "max_tokens"),
}
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "x", "user", "text"])


def objects(values: st.SearchStrategy) -> st.SearchStrategy:
    names = ["type", "text", "role", "content", "name", "function", "id", "input", "messages", "prompt", "stop"]
    return st.dictionaries(st.sampled_from(names), values, max_size=4)


VALUES = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3) | objects(each), max_leaves=8)


def without_null(value: object) -> object:
    """Null in an object stands for a field that is not there."""
    if isinstance(value, dict):
        return {name: without_null(each) for name, each in value.items() if each is not None}
    return [without_null(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_is_allowed_is_what_jsonschema_allows(name: str, data: st.DataObject) -> None:
    properties = SCHEMAS[name]["properties"]
    field = data.draw(st.sampled_from(sorted(properties)))
    value = without_null(data.draw(VALUES))
    validator = jsonschema.Draft202012Validator(closed(properties[field]))
    try:
        check(value, properties[field], field)
        allowed = True
    except RequestError as error:
        allowed = False
        assert error.param.startswith(field) and str(error)[-1] in ".?"
    assert allowed == validator.is_valid(value), (field, value)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("temperature", 200, "temperature must be a number between 0.0 and 100.0, not 200."),
        ("seed", True, "seed must be a whole number between"),
        ("stop", 3, "stop must be a text or a list of texts, not 3."),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type must be text, not 'image_url'.",
        ),
        ("messages", [], "messages must not be empty."),
        ("store", True, "store must be false, not true."),
        ("logit_bias", {"5": None}, "logit_bias.5 must be a number between -1e+30 and 1e+30, not null."),
        ("tool_choice", "sometimes", "tool_choice must be one of none, auto, required, not 'sometimes'."),
    ],
)
def test_sentences_name_the_place_and_what_is_right(path: str, value: object, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        check(value, CHAT[path], path)
    assert sentence in str(caught.value)


def test_a_block_of_another_type_is_named() -> None:
    messages = [{"role": "user", "content": [{"type": "thinking", "thinking": "..."}]}]
    with pytest.raises(RequestError, match="type must be one of text, tool_use, tool_result, not 'thinking'"):
        check(messages, MESSAGES["messages"], "messages")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_what_to_do(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        read_body({"messages": [{"role": "user", "content": "x"}], name: {"a": 1}}, SCHEMAS["chat"])
    assert caught.value.param == name and caught.value.code == "unsupported_parameter"
