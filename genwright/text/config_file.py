"""Files, and fields of a configuration, that anyone may have written: a sentence for each thing that can be wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.arguments import plain as plain
from genwright.arguments import short as short
from genwright.errors import UserError


def read_text(path: Path, newline: str | None = None) -> str:
    """A text file's characters without a byte-order mark, or one sentence about why not; `newline` as in `open`."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} is no part of a character.") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} should hold a JSON object, and holds a {type(value).__name__}.")
    return value


@dataclass
class FieldReader:
    """Reads fields of a configuration that anyone may have written."""

    config: Mapping[str, Any]
    where: str

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 < value < 1e30:
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if not isinstance(value, bool | None):
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        value = self.config.get(key)
        if not isinstance(value, str | None):
            raise self.wrong(key, "a string")
        return default if value is None else value

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < 1 << 31 for item in values):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(values)

    def table(self, key: str) -> "FieldReader":
        value = self.config.get(key)
        if not isinstance(value, dict | None):
            raise self.wrong(key, "an object")
        return FieldReader(value or {}, f"{self.where} ({key})")

    def wrong(self, key: str, expected: str) -> UserError:
        return UserError(f"{self.where} should give {key!r} as {expected}, and has {short(self.config.get(key))}.")


def token_ids(value: Any, what: str) -> list[int]:
    """Token ids as Python's own whole numbers, from a sequence, an array or a tensor."""
    given = plain(value)
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise UserError(f"{what}, not {short(value)}.")
    ids = [item if type(item) is int else plain(item) for item in given]
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int):
            raise UserError(f"{what}, and {short(item)} is no token id.")
    return [int(item) for item in ids]
