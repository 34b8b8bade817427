"""Prompts: a text or token ids each, one or several of them."""

from collections.abc import Sequence
from typing import Any

from genwright.arguments import plain

Prompt = str | Sequence[int]


def as_list(prompts: Any) -> list[Prompt]:
    """Prompts as a list; a single text or list of token ids is one prompt."""
    given = plain(prompts)
    single = not isinstance(given, list | tuple) or (given and not isinstance(plain(given[0]), str | Sequence))
    return [given] if single else list(given)
