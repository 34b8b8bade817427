"""The openai package against a running server."""

import asyncio
import base64
import io
import json

import jsonschema
import openai
import pytest
from PIL import Image
from serve.running import Running

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_streamed_chat_is_the_whole_one(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "messages": QUESTION, "seed": 3, "n": 2, "max_tokens": 12, "top_logprobs": 2}
    whole = client.chat.completions.create(**options, logprobs=True)
    texts, logprobs, reasons, usage = ["", ""], [[], []], [None, None], None
    for chunk in client.chat.completions.create(
        **options, logprobs=True, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    for choice, streamed in zip(whole.choices, logprobs, strict=True):
        assert [each.token for each in streamed] == [each.token for each in choice.logprobs.content]
        assert all(len(each.top_logprobs) == 2 for each in streamed)
    assert usage.completion_tokens == whole.usage.completion_tokens == sum(map(len, logprobs))


def test_stop_and_logit_bias_and_extensions(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "messages": QUESTION, "temperature": 0}
    assert client.chat.completions.create(**options, stop=" France").choices[0].message.content == "The capital of"
    ids = client.post("/../tokenize", body={"content": " Paris"}, cast_to=object)["tokens"]
    biased = client.chat.completions.create(**options, logit_bias={str(ids[0]): -100})
    assert "Paris" not in biased.choices[0].message.content
    stopped = client.chat.completions.create(**options, extra_body={"stop_ids": ids, "top_k": 1})
    assert stopped.choices[0].message.content == "The capital of France is"


def test_completions(client: openai.OpenAI) -> None:
    one = client.completions.create(model="smollm2", prompt="One, two, three,", temperature=0, max_tokens=6)
    assert one.choices[0].text == " four, five, six,"
    two = client.completions.create(
        model="smollm2", prompt=["One, two, three,", "A, B, C,"], temperature=0, max_tokens=6, n=2, seed=1
    )
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.choices[0].text == two.choices[1].text == one.choices[0].text
    pieces = client.completions.create(
        model="smollm2", prompt="One, two, three,", temperature=0, max_tokens=6, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == one.choices[0].text


def test_echo_has_the_logprobs_of_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="One, two", temperature=0, max_tokens=2, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text.startswith("One, two") and "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None and all(each <= 0 for each in choice.logprobs.token_logprobs[1:])
    text = "日本 🎉, two"
    offsets = client.completions.create(model="smollm2", prompt=text, max_tokens=0, echo=True, logprobs=0)
    assert text.index(",") in offsets.choices[0].logprobs.text_offset, "characters, not tokens' parts of them"
    nothing = client.completions.create(model="smollm2", prompt="One, two", max_tokens=0, echo=True, logprobs=0)
    assert nothing.choices[0].text == "One, two" and nothing.usage.completion_tokens == 0


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="smollm2", input="What is the capital of France?", temperature=0)
    assert whole.output_text == "The capital of France is Paris." and whole.status == "completed"
    with client.responses.stream(
        model="smollm2", input=QUESTION, temperature=0, instructions="You are a helpful AI assistant."
    ) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    cut = client.responses.create(model="smollm2", input="Count to a hundred.", max_output_tokens=3, store=False)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output[0].status == "incomplete"


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="smollm2", input=["A cat sat.", "A kitten sat.", "Taxes rose by 3 %."])
    cat, kitten, taxes = (each.embedding for each in found.data)
    assert sum(x * x for x in cat) == pytest.approx(1, abs=1e-5)

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert dot(cat, kitten) > dot(cat, taxes)
    plain = client.embeddings.create(model="smollm2", input="A cat sat.", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(cat, abs=1e-6)


def test_images(client: openai.OpenAI, server: Running) -> None:
    classes = server.request("GET", "/v1/models/emoji")[1]["classes"]
    found = client.images.generate(model="emoji", prompt=classes[0], n=2, extra_body={"seed": 7})
    pictures = [Image.open(io.BytesIO(base64.b64decode(each.b64_json))) for each in found.data]
    assert [picture.size for picture in pictures] == [(32, 32)] * 2
    again = client.images.generate(model="emoji", prompt=classes[0], n=1, extra_body={"seed": 7})
    assert again.data[0].b64_json == found.data[0].b64_json
    with pytest.raises(openai.BadRequestError, match="There is no class"):
        client.images.generate(model="emoji", prompt="a dragon", n=1)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2", "emoji"]
    assert client.models.retrieve("smollm2").owned_by == "genwright"


ERRORS = [
    ({"model": "gpt-4o"}, openai.NotFoundError, "model"),
    ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
    ({"temperature": -1}, openai.BadRequestError, "temperature"),
    ({"n": 0}, openai.BadRequestError, "n"),
    ({"n": 4000}, openai.BadRequestError, None),
    ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, openai.BadRequestError, "max_tokens"),
    ({"messages": []}, openai.BadRequestError, "messages"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, openai.BadRequestError, None),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, openai.BadRequestError, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, openai.BadRequestError, "messages[0].content"),
    (
        {"messages": [{"role": "tool", "content": "4", "tool_call_id": "x"}]},
        openai.BadRequestError,
        "messages[0].tool_call_id",
    ),
    ({"logit_bias": {"Paris": 1}}, openai.BadRequestError, "logit_bias"),
    ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs"),
    ({"store": True}, openai.BadRequestError, "store"),
    ({"extra_body": {"best_of": 2}}, openai.BadRequestError, "best_of"),
    ({"extra_body": {"functions": []}}, openai.BadRequestError, "functions"),
    ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
    ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
]


@pytest.mark.parametrize(("changed", "kind", "param"), ERRORS, ids=[str(list(each[0].items()))[:50] for each in ERRORS])
def test_errors_are_the_clients_own(client: openai.OpenAI, changed: dict, kind: type, param: str | None) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "smollm2", "messages": QUESTION, **changed})
    error = caught.value.body
    assert error["param"] == param
    assert error["message"][0].isalpha() and error["message"][-1] in ".?" and error["message"].count("\n") == 0


def test_many_requests_at_once(server: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked = [
                client.completions.create(model="smollm2", prompt="One, two, three,", temperature=0, max_tokens=6)
                for _ in range(8)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [" four, five, six,"] * 8


def test_tokenize_and_template(server: Running) -> None:
    status, found = server.post("/tokenize", {"content": "Hello, world", "with_pieces": True})
    assert status == 200 and "".join(each["piece"] for each in found["tokens"]) == "Hello, world"
    ids = [each["id"] for each in found["tokens"]]
    assert server.post("/detokenize", {"tokens": ids})[1] == {"content": "Hello, world"}
    prompt = server.post("/apply-template", {"messages": QUESTION})[1]["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n") and QUESTION[0]["content"] in prompt
    assert json.loads(json.dumps(prompt)) == prompt


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


def test_an_answer_follows_its_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, response_format=form, seed=1)
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    text = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    response = client.responses.create(model="smollm2", input="Name a city.", text=text)
    jsonschema.validate(json.loads(response.output_text), SCHEMA)
    any_object = {"type": "json_object"}
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, response_format=any_object, max_tokens=300, seed=2
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_regex_and_grammars(client: openai.OpenAI) -> None:
    for constraint in (
        {"regex": "(yes|no)!"},
        {"grammar": 'root ::= "yes!" | "no!"'},
        {"grammar": 'start: "yes!" | "no!"'},
    ):
        answer = client.chat.completions.create(model="smollm2", messages=QUESTION, extra_body=constraint)
        assert answer.choices[0].message.content in ("yes!", "no!")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"regex": "(((("}, "regex"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "start: \"a\"", "regex": "a"}, "regex"),
    ],
)  # fmt: skip
def test_constraints_that_cannot_be_followed(server: Running, changed: dict, param: str) -> None:
    status, answer = server.post("/v1/chat/completions", {"messages": QUESTION, **changed})
    assert status == 400 and answer["error"]["param"] == param, answer


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_tool_that_must_be_called(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    options = {"model": "smollm2", "messages": ASKED, "tools": [WEATHER], "seed": 1, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**options, tool_choice=choice)
    assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
    [call] = whole.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments).keys() == {"city"}
    with client.chat.completions.stream(**options, tool_choice="required") as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments and final.choices[0].finish_reason == "tool_calls"
    history = [*ASKED, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    answer = client.chat.completions.create(model="smollm2", messages=history, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


def test_a_function_call_of_a_response(client: openai.OpenAI) -> None:
    tool = {"type": "function", **WEATHER["function"], "strict": True}
    options = {"model": "smollm2", "input": ASKED, "tools": [tool], "tool_choice": "required"}
    whole = client.responses.create(**options, parallel_tool_calls=False, extra_body={"seed": 1})
    [call] = whole.output
    assert call.type == "function_call" and json.loads(call.arguments).keys() == {"city"}
    with client.responses.stream(**options, parallel_tool_calls=False, extra_body={"seed": 1}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds and final.output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    given = [*ASKED, call.model_dump(exclude_none=True), result]
    assert client.responses.create(model="smollm2", input=given, max_output_tokens=8).output_text


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [WEATHER], "regex": "a"}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "no"}}]}]},
         "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}, "messages[1]"),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_served(server: Running, changed: dict, param: str) -> None:
    status, answer = server.post("/v1/chat/completions", {"messages": ASKED, **changed})
    assert status == 400 and answer["error"]["param"] == param, answer


def test_a_tool_whose_schema_cannot_be_followed(server: Running) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}
    tools = [WEATHER, {"type": "function", "function": function}]
    status, answer = server.post("/v1/chat/completions", {"messages": ASKED, "tools": tools})
    assert status == 400 and answer["error"]["param"] == "tools"
    assert answer["error"]["message"] == (
        "tools[1].function.parameters: The schema's keyword #/properties/a/not is not supported."
    )
