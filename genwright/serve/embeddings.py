"""POST /v1/embeddings, as OpenAI's clients speak it."""

import base64
import struct
from typing import Any

from starlette.requests import Request

from genwright.serve.completions import prompt_ids
from genwright.serve.field_checks import object_of
from genwright.serve.generation import compute, prepare
from genwright.serve.request_fields import NAME, PROMPT, TEXT
from genwright.serve.service import Service

SCHEMA = object_of(
    {"input": PROMPT, "model": NAME, "encoding_format": {"enum": ["float", "base64"]}, "user": TEXT}, "input"
)


async def embeddings(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """Vectors of length 1, the mean of a text's final hidden states."""
    record = request.scope["record"]
    name = service.model_name(given, record)
    prompts = await prepare(request, prompt_ids, service, given["input"], "input")
    service.check_lengths(prompts, None, "input")
    vectors = await compute(service, request, "embed", prompts)
    encode = _base64 if given.get("encoding_format") == "base64" else list
    record.prompt_tokens = tokens = sum(map(len, prompts))
    return {
        "object": "list",
        "model": name,
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
