"""Whether a grammar accepts a JSON value in some of its writings: other orders of names, other forms of numbers."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from genwright import SamplingParams
from genwright.text.engine.grammar import Grammar, Grammars
from genwright.text.engine.schema import subschemas
from genwright.text.tokenizer.tokenizer import Tokenizer

pytest.importorskip("llguidance")


def byte_tokenizer(*special: str) -> Tokenizer:
    """A vocabulary of all bytes, so that a text has one tokenization, and of some special tokens."""
    tokens = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", *special])
    return Tokenizer(backend, {"eos_token": "<end>"})


class Text(str):
    """A piece of a writing, in contrast to a value that is a text."""


class Checker:
    """Compiles grammars for a vocabulary of bytes, and checks texts and values against them."""

    def __init__(self, *special: str) -> None:
        self.tokenizer = byte_tokenizer(*special)
        self.grammars = Grammars(self.tokenizer, self.tokenizer.vocab_size, [0])

    def compile(self, schema: Any = None, **params: Any) -> Grammar:
        grammar = self.grammars.new(SamplingParams(schema=schema, **params))
        assert grammar is not None
        return grammar

    def accepts_text(self, grammar: Grammar, text: str) -> bool:
        matcher, ids = grammar.copy().matcher, self.tokenizer.encode(text, special=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def accepts(self, grammar: Grammar, schema: Any, value: Any) -> bool:
        """Whether some writing of the value is accepted."""
        if self.accepts_text(grammar, json.dumps(value, ensure_ascii=False)):
            return True
        matcher = grammar.copy().matcher
        written = _Writer(self.tokenizer, matcher, _orders_in(schema)).write(value)
        return written > 0 and matcher.is_accepting()


class _Writer:
    def __init__(self, tokenizer: Tokenizer, matcher: Any, orders: list[list[str]]):
        self.tokenizer, self.matcher, self.orders = tokenizer, matcher, orders

    def write(self, value: Any) -> int:
        """Consume some writing of a value; returns the number of its tokens, 0 if there is none."""
        return next((count for parts in self._writings(value) if (count := self._consume(parts))), 0)

    def _consume(self, parts: list[Any]) -> int:
        total = 0
        for part in parts:
            if isinstance(part, Text):
                ids = self.tokenizer.encode(part, special=False)
                count = self.matcher.try_consume_tokens(ids)
                done = count == len(ids)
            else:
                count = self.write(part)
                done = count > 0
            total += count
            if not done:
                self.matcher.rollback(total)
                return 0
        return total

    def _writings(self, value: Any) -> Iterator[list[Any]]:
        if isinstance(value, list):
            items = [each for item in value for each in (Text(", "), item)][1:]
            yield [Text("["), *items, Text("]")]
        elif isinstance(value, dict):
            for keys in self._orders(list(value)):
                items = [each for key in keys for each in (Text(f", {_json(key)}: "), value[key])]
                yield [Text("{"), *([Text(items[0][2:]), *items[1:]] if items else []), Text("}")]
        else:
            # The longest first, because a shorter one may be its beginning.
            yield from ([Text(text)] for text in [*_numbers(value), _json(value)])

    def _orders(self, keys: list[str]) -> list[tuple[str, ...]]:
        """The given order, and those of the schemas that know some of the names; unknown ones come last."""
        found = dict.fromkeys([tuple(keys)])
        for order in self.orders:
            if known := [key for key in order if key in keys]:
                found[*known, *(key for key in keys if key not in order)] = None
        return list(found)


def _orders_in(schema: Any) -> list[list[str]]:
    """The orders of names that a schema's grammar may require."""
    found: list[list[str]] = []
    for _, part in subschemas(schema):
        properties, required = part.get("properties"), part.get("required")
        found.append(list(properties) if isinstance(properties, dict) else [])
        found[-1] += [name for name in (required if isinstance(required, list) else []) if name not in found[-1]]
        values = [part.get("const"), *(part.get("enum") or [])]
        while values:
            value = values.pop()
            found += [list(value)] if isinstance(value, dict) else []
            values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _numbers(value: Any) -> list[str]:
    """A number as an integer, without an exponent, and with more zeros."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    plain = format(Decimal(repr(value)), "f")
    point = plain if "." in plain else f"{plain}."
    return [f"{point}00", f"{point}0", plain, *([str(int(value))] if value == int(value) else [])]
