"""litellm against the server whose address is the argument; run by an interpreter that has no genwright."""

import json
import sys

import litellm
from pydantic import BaseModel, Field

url = sys.argv[1]
options = {"model": "openai/smollm2", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 100}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


class City(BaseModel):
    name: str = Field(max_length=20)
    people: int = Field(ge=0, le=10**7)


def ask(**changed):
    return litellm.completion(**{**options, "messages": QUESTION, **changed})


text = ask().choices[0].message.content
assert "Paris" in text
assert "".join(piece.choices[0].delta.content or "" for piece in ask(stream=True)) == text

[call] = ask(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city"}
pieces = list(ask(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True))
streamed = litellm.stream_chunk_builder(pieces).choices[0].message.tool_calls[0]
assert streamed.function.arguments == call.function.arguments

City.model_validate_json(ask(response_format=City).choices[0].message.content)

logprobs = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
assert logprobs and all(len(each.top_logprobs) == 2 for each in logprobs)

place = {"api_base": f"{url}/v1", "api_key": "none"}
assert len(litellm.embedding(model="openai/smollm2", input=["a", "b"], **place).data) == 2
images = litellm.image_generation(model="openai/emoji", prompt="", n=2, **place)
assert len(images.data) == 2 and images.data[0].b64_json

anthropic = {**options, "model": "anthropic/smollm2", "api_base": url}
assert "Paris" in litellm.completion(messages=QUESTION, **anthropic).choices[0].message.content

for changed, error in (
    ({"temperature": -3}, litellm.BadRequestError),
    ({"model": "openai/other"}, litellm.NotFoundError),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, litellm.ContextWindowExceededError),
):
    try:
        ask(**changed)
    except error:
        pass
    else:
        raise AssertionError(changed)
