"""Messages between the server and its engine's process: a length, then a pickled tuple whose first element names it."""

import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from genwright.text.engine.request import Logprob

HEADER = struct.Struct("<Q")
Message = tuple[Any, ...]


class End(NamedTuple):
    """What is known of a sequence when it ends; times are in seconds."""

    reason: str  # stop, length, cancelled or error
    stop_text: str | None
    prompt_tokens: int
    cached_tokens: int
    queued: float
    first_token: float
    total: float
    prompt_logprobs: list[Logprob | None] | None


class Part(NamedTuple):
    """What a step added to one sequence of a request."""

    number: int  # of the request
    choice: int  # of its sequences
    text: str
    tokens: int  # how many are new
    logprobs: Sequence[Logprob]
    end: End | None


class ToolUse(NamedTuple):
    """The tools that the model may call, and whether it must, as chat completions have them."""

    tools: list[dict[str, Any]]
    choice: Any  # none, auto, required, or {"type": "function", "function": {"name": ...}}
    parallel: bool


def pack(message: Message) -> bytes:
    """A message as bytes; both processes run this package, so that pickle is safe between them."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data


def unpack(data: bytes) -> Message:
    message: Message = pickle.loads(data)
    return message
