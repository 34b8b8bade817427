"""The anthropic package against a running server."""

import json

import anthropic
import pytest
from serve.running import Running

GREEDY = {"temperature": 0}  # which this client does not send by itself
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="smollm2", max_tokens=32, messages=QUESTION, extra_body=GREEDY)
    assert answer.content[0].text == "The capital of France is Paris." and answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="smollm2", messages=QUESTION)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_streamed_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="smollm2", max_tokens=32, messages=QUESTION, extra_body=GREEDY, stop_sequences=[" is"]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == "The capital of France"
    assert final.stop_reason == "stop_sequence" and final.stop_sequence == " is" and final.usage.output_tokens == 5


def test_system_blocks_and_the_beginning_of_an_answer(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="smollm2",
        max_tokens=2,
        system=[{"type": "text", "text": "You are a helpful AI assistant."}],
        messages=[*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "The capital of France is"}]}],
        extra_body=GREEDY,
    )
    assert answer.content[0].text.startswith(" Paris") and answer.stop_reason == "max_tokens"


WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}
ERRORS = [
    ({"model": "claude"}, anthropic.NotFoundError, "claude"),
    ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
    ({"max_tokens": 10_000}, anthropic.BadRequestError, "10,000"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, anthropic.BadRequestError, "thinking"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        anthropic.BadRequestError,
        "content",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "4"}]}]},
        anthropic.BadRequestError,
        r"messages\[0\]\.content\[0\]\.tool_use_id: .*'a'",
    ),
    (
        {"messages": [*QUESTION, {"role": "assistant", "content": [CALL]}, *QUESTION], "system": "Be brief."},
        anthropic.BadRequestError,
        r"messages\[1\] has calls without a result: 'a'",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, anthropic.BadRequestError, "tool_choice.name is missing"),
]


@pytest.mark.parametrize(("changed", "kind", "words"), ERRORS, ids=[str(each[0])[:40] for each in ERRORS])
def test_errors_are_the_clients_own(client: anthropic.Anthropic, changed: dict, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        client.messages.create(**{"model": "smollm2", "max_tokens": 8, "messages": QUESTION, **changed})


ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_tool_use(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    options = {"model": "smollm2", "max_tokens": 100, "messages": ASKED, "tools": [WEATHER], "tool_choice": choice}
    whole = client.messages.create(**options, extra_body=GREEDY)
    [block] = whole.content
    assert whole.stop_reason == "tool_use" and block.name == "get_weather" and block.input.keys() == {"city"}
    with client.messages.stream(**options, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "It rains."}
    history = [*ASKED, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model="smollm2", max_tokens=8, messages=history, tools=[WEATHER])
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 50


def test_an_answer_follows_its_schema(client: anthropic.Anthropic) -> None:
    form = {"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}}
    answer = client.messages.create(model="smollm2", max_tokens=100, messages=ASKED, output_config=form)
    assert json.loads(answer.content[0].text).keys() == {"city"}
