"""langchain-openai against the server whose address is the argument; run by an interpreter that has no genwright."""

import sys

import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

options = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": "smollm2"}
chat = ChatOpenAI(**options, temperature=0, max_retries=0, max_tokens=100)
QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: str = Field(max_length=20)
    people: int = Field(ge=0, le=10**7)


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


answer = chat.invoke(QUESTION)
assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 0
assert "".join(piece.content for piece in chat.stream(QUESTION)) == answer.content

bound = chat.bind_tools([get_weather], tool_choice="get_weather")
calls = bound.invoke("How is the weather in Rome?").tool_calls
assert [call["name"] for call in calls] == ["get_weather"] and set(calls[0]["args"]) == {"city"}
gathered = None
for piece in bound.stream("How is the weather in Rome?"):
    gathered = piece if gathered is None else gathered + piece
assert gathered.tool_calls[0]["args"] == calls[0]["args"]

for method in ("json_schema", "function_calling"):
    assert isinstance(chat.with_structured_output(City, method=method).invoke("Name a city."), City)

logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
assert logprobs and all(len(each["top_logprobs"]) == 2 for each in logprobs)

# By default this class sends token ids of OpenAI's vocabulary.
embeddings = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
assert len(embeddings.embed_query("a")) == len(embeddings.embed_documents(["a", "b"])[1])

for changed, error in (
    ({"temperature": -3}, openai.BadRequestError),
    ({"model": "other"}, openai.NotFoundError),
    ({"max_tokens": 10**6}, openai.BadRequestError),
):
    try:
        chat.bind(**changed).invoke(QUESTION)
    except error as raised:
        assert raised.param, raised
    else:
        raise AssertionError(changed)
