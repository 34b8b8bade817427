"""Reads files and configuration fields that may hold anything; each mistake is a UserError of one sentence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from genwright.arguments import plain, short
from genwright.errors import UserError

T = TypeVar("T")


def read_text(path: Path, newline: str | None = None) -> str:
    """Read a UTF-8 file without its byte-order mark; `newline` as in `open`."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} is invalid.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, not a {type(value).__name__}.")
    return value


@dataclass
class FieldReader:
    """Reads and checks the fields of a configuration; `where` names it in errors."""

    config: Mapping[str, Any]
    where: str

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number between {low} and {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 < value < 1e30:
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        return self._typed(key, bool, default, "true or false")

    def text(self, key: str, default: str) -> str:
        return self._typed(key, str, default, "a string")

    def table(self, key: str) -> "FieldReader":
        return FieldReader(self._typed(key, dict, {}, "an object"), f"{self.where} ({key})")

    def _typed(self, key: str, kind: type[T], default: T, expected: str) -> T:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(key, expected)
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < 1 << 31 for item in values):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(values)

    def wrong(self, key: str, expected: str) -> UserError:
        return UserError(f"{self.where}: {key!r} must be {expected}, not {short(self.config.get(key))}.")


def token_ids(value: Any, what: str) -> list[int]:
    """Convert a sequence, an array or a tensor to a list of token ids; `what` begins the error's sentence."""
    given = plain(value)
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise UserError(f"{what}, not {short(value)}.")
    ids = [item if type(item) is int else plain(item) for item in given]
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int):
            raise UserError(f"{what}, but {short(item)} is not a token id.")
    return [int(item) for item in ids]
