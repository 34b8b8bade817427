"""A call of a tool that a stop string or the limit cuts off is no call: each API gives its text."""

import json
from types import SimpleNamespace

import anthropic
import openai
import pytest
from serve.running import Running

from genwright.serve.chat_messages import tool_call
from genwright.serve.chat_prompt import Answer
from genwright.serve.generation import Choice
from genwright.serve.responses import ResponseWriter

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
ASKED = {"model": "smollm2", "messages": [{"role": "user", "content": "How warm is it in Rome?"}]}
CUT = '<tool_call>{"name":"weather","arguments":{"city":"R'


@pytest.mark.parametrize(("options", "reason"), [({"stop": 'ome"'}, "stop"), ({"max_tokens": 20}, "length")])
def test_a_chat_completion(options: dict, reason: str, server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    asked = {**ASKED, "tools": [tool], "tool_choice": "required", "temperature": 0, **options}
    [whole] = client.chat.completions.create(**asked).choices
    assert whole.finish_reason == reason and whole.message.tool_calls is None
    text = "".join(whole.message.content.split())  # spaces in JSON are the model's choice
    assert text == CUT if reason == "stop" else text.startswith(CUT[:44])
    streamed = list(client.chat.completions.create(**asked, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in streamed][-1] == reason


def test_a_message(server: Running) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    asked = {**ASKED, "tools": [{"name": "weather", "input_schema": PARAMETERS}], "tool_choice": {"type": "any"}}
    asked |= {"max_tokens": 100, "stop_sequences": ['ome"']}
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "stop_sequence" and "".join(whole.content[0].text.split()) == CUT
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().stop_reason == "stop_sequence"
    asked["stop_sequences"] = ["\n</tool_call>"]  # after the call's end
    ended = client.messages.create(**asked)
    assert ended.stop_reason == "tool_use" and ended.content[0].input == {"city": "Rome"}


def test_a_whole_call_before_one_that_is_cut_off_stays_whole() -> None:
    call = tool_call("call_1", "weather", '{"city": "Rome"}')
    chat = SimpleNamespace(parse=lambda text: Answer("", [call], CUT))
    writer = ResponseWriter({}, "smollm2", SimpleNamespace(chat=lambda logprobs: []), chat, {})
    output = writer.whole(Choice())["output"]
    assert [(item["type"], item["status"]) for item in output] == [
        ("function_call", "completed"),
        ("message", "incomplete"),
    ]
    assert output[1]["content"][0]["text"] == CUT


def test_a_response(server: Running) -> None:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    asked = {
        "model": "smollm2",
        "input": "How warm is it in Rome?",
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0,
    }
    status, whole = server.post("/v1/responses", {**asked, "max_output_tokens": 20})
    assert (status, whole["status"]) == (200, "incomplete") and whole["output"][0]["type"] == "message"
    assert whole["output"][-1]["status"] == "incomplete"
    whole = server.post("/v1/responses", asked)[1]
    assert json.loads(whole["output"][0]["arguments"]) == {"city": "Rome"}
