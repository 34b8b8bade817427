"""Fields of settings dataclasses, and checks of arguments that raise one sentence with the argument's name."""

import math
import operator
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from genwright.errors import UserError


def setting(default: Any, help: str, *, commas: bool = False) -> Any:
    """A field of a settings dataclass, with the help of its flag; `commas`: the flag's values are joined by commas."""
    return field(default=default, metadata={"help": help, "commas": commas})


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`; numpy's and torch's whole numbers are allowed, True is not."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not low <= found <= high:
        raise UserError(f"{name} must be a whole number between {low} and {high}, not {shown(value)}.")
    return found


def number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """`value` as a float between `low` and `high`."""
    try:
        found = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last for a tensor of several
        found = math.nan
    if not low <= found <= high:
        raise UserError(f"{name} must be a number between {low:g} and {high:g}, not {shown(value)}.")
    return found


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"There is no {name} {shown(value)}; choose one of {', '.join(choices)}.")
    return value


def shown(value: Any) -> str:
    """`value` on one line, short enough for a sentence."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
