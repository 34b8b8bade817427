"""How large a value may grow that the interpreter of command lines computes."""

import ast
import pathlib
import re
from typing import Any

LARGEST = 20_000  # elements, characters and bytes of a value, with all that it holds
_DEEPEST = 40
_FORMATTED = 1000  # characters that a width of at most three digits gives


class TooLarge(ValueError):
    """The value is not computed."""


def weight(value: Any) -> int:
    """Elements, characters and bytes of a value, parts that it holds twice counted twice; above LARGEST, any number."""
    total = 0
    pending = [(value, 0)]
    while pending and total <= LARGEST:
        held, depth = pending.pop()
        total += 1
        if isinstance(held, str | bytes):
            total += len(held)
        elif isinstance(held, int):
            total += held.bit_length() // 8
        elif isinstance(held, range):
            total += abs((held.stop - held.start) // held.step)
        elif isinstance(held, pathlib.PurePath):
            total += len(str(held))
        elif isinstance(held, dict | list | tuple | set | frozenset):
            if depth > _DEEPEST or len(held) > LARGEST:
                return LARGEST + 1
            parts = [*held, *held.values()] if isinstance(held, dict) else held
            pending += [(part, depth + 1) for part in parts]
    return total


def check_operation(kind: type[ast.operator], left: Any, right: Any) -> int:
    """How much work an operation is; raises TooLarge when its result may be."""
    total = weight(left) + weight(right)
    if kind is ast.Mult:
        for sequence, count in ((left, right), (right, left)):
            if isinstance(count, int) and not isinstance(sequence, int | float):
                total = max(total, weight(sequence) * max(count, 0))
    if kind is ast.Mod and isinstance(left, str | bytes):
        pattern = left if isinstance(left, str) else left.decode("latin-1")
        if re.search(r"%[^%a-zA-Z]*(\*|\d{4})", pattern):
            raise TooLarge
        total += pattern.count("%") * _FORMATTED
    return checked(total)


def check_call(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> int:
    """How much work a call of a pure function or of a plain value's method is; raises TooLarge as above."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    given = [*arguments, *keywords.values()]
    total = weight(given) + (weight(owner) if isinstance(owner, str | list | dict | set | tuple) else 0)
    if isinstance(owner, str):
        if name == "format":
            if re.search(r"\{[^{}]*[:!.\[]", owner):
                raise TooLarge
            total += owner.count("{") * weight(given)
        elif name in ("replace", "join"):
            longest = max((len(a) for a in [owner, *arguments] if isinstance(a, str)), default=0)
            count = len(owner) if name == "replace" else weight(given)
            total += (count + 1) * (longest + 1)
    return checked(total)


def checked(total: int) -> int:
    """The weight itself, or TooLarge."""
    if total > LARGEST:
        raise TooLarge
    return total
