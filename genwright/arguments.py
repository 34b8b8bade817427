"""Settings and arguments: fields of settings dataclasses, and checks that raise one sentence naming the argument."""

import os
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from types import UnionType
from typing import Any, get_args

from genwright.errors import UserError


def setting(
    default: Any,
    help: str,
    *,
    between: tuple[float, float] | None = None,
    choices: Iterable[str] = (),
    flags: tuple[str, ...] = (),
    commas: bool = False,
    file: bool = False,
) -> Any:
    """A field of a settings dataclass: the help and names of its flag, and the values that `check_settings` allows.

    With `commas`, the flag's values are joined by commas; with `file`, it is the path of a file that has the value. A
    default that is a type stands for an empty one of it.
    """
    allowed = {"between": between, "choices": tuple(choices)}
    metadata = {"help": help, **allowed, "flags": flags, "commas": commas, "file": file}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Raise an error for a value of another type or out of range; numbers of numpy and torch become Python's own."""
    for each in fields(settings):
        kinds = get_args(each.type) if isinstance(each.type, UnionType) else (each.type,)
        value = plain(getattr(settings, each.name))
        others = tuple(kind for kind in kinds[1:] if kind is not str)  # such as None, or a dataclass instead of a text
        if each.metadata and kinds[0] in (bool, int, float, str) and not isinstance(value, others):
            object.__setattr__(settings, each.name, _checked(each.name, kinds[0], value, each.metadata))


def parse_gigabytes(name: str, value: Any) -> Any:
    """A size such as 16GiB, 24GB or 800MB in units of 10^9 bytes; a text that is a number, and numbers, are GB."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(?:([KMGT])(i?)B?)?\s*", value, re.IGNORECASE)
    if found is None:
        raise UserError(f"{name} must be a size such as 16GiB, 24GB or 800MB, not {short(value)}.")
    power = "BKMGT".index((found[2] or "G").upper())
    return float(found[1]) * (1024 if found[3] else 1000) ** power / 1e9


def counted(count: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`; numpy's and torch's whole numbers are allowed, True is not."""
    return int(_checked(name, int, plain(value), {"between": (low, high)}))


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
    return str(_checked(name, str, value, {"choices": tuple(choices)}))


def _checked(name: str, kind: type, value: Any, allowed: Mapping[str, Any]) -> Any:
    if kind is bool:
        right, what = isinstance(value, bool), "true or false"
    elif kind is str:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        right, what = isinstance(value, str) and bool(value), "a text that is not empty"
        if allowed["choices"]:
            right, what = right and value in allowed["choices"], f"one of {', '.join(allowed['choices'])}"
    else:
        low, high = allowed["between"]
        what = f"{'a whole number' if kind is int else 'a number'} between {low:,} and {high:,}"
        numbers = int if kind is int else int | float
        right = not isinstance(value, bool) and isinstance(value, numbers) and low <= value <= high
    try:
        if right:
            return kind(value)
    except OverflowError:  # a float has no room for it
        pass
    raise UserError(f"{name} must be {what}, not {short(value)}.")


def plain(value: Any) -> Any:
    """Scalars of numpy and torch as Python's own numbers, arrays and tensors as lists; anything else as it is."""
    try:
        return value.tolist()
    except Exception:  # it has no such method, or is a tensor without values
        return value


def short(value: object) -> str:
    """A value of any size and depth, to be shown in a sentence."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    try:
        return " ".join(short.repr(value).split())
    except ValueError:  # Python writes out no integer of more than 4,300 digits
        return "a number of thousands of digits"
