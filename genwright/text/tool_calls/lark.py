"""Pieces of Lark grammars: JSON of a schema, and markers that are tokens of some vocabularies and text in others."""

import json
import re
from collections.abc import Callable
from typing import Any

# Between the parts of a JSON text: nothing, a space, or a line break with some indentation.
WHITESPACE = r"( |\n(\t{0,8}| {0,32}))"
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
ANY_TEXT = r"/(.|\n)*/"
_MARKER = re.compile("⟦(until )?([^⟧]*)⟧")  # schemas are written in ASCII, so they have none


def json_of(schema: Any) -> str:
    """In a rule: JSON that follows a schema."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": JSON_OPTIONS}
    return f"%json {json.dumps(schema)}"


def quoted(text: str) -> str:
    """In a rule: this text."""
    return json.dumps(text)


def marker(text: str) -> str:
    """In a rule: the token of the vocabulary that is this text, or the text if there is none."""
    return f"⟦{text}⟧"


def until(text: str) -> str:
    """After a rule's name: any text up to a marker, and the marker."""
    return f"⟦until {text}⟧"


def resolve_markers(grammar: str, find: Callable[[str], int | None]) -> str:
    """A grammar with its markers as tokens or text; `find` gives the id of a token, or None."""

    def resolved(found: re.Match[str]) -> str:
        free, text = found.groups()
        token = find(text)
        if not free:
            return quoted(text) if token is None else f"<[{token}]>"
        return f"[suffix={quoted(text)}]: {ANY_TEXT}" if token is None else f": {ANY_TEXT} <[{token}]>"

    return _MARKER.sub(resolved, grammar)
