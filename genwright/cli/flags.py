"""Flags of a command, read from the settings dataclasses that they fill."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from genwright.errors import UserError

SHOW_DEFAULTS = "show defaults"


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter that is a dataclass into one flag per field that has a `help`.

    A parameter `Annotated[dict, DATACLASS]` has the same flags without defaults, and gets a dict of those given;
    `Annotated[dict, DATACLASS, SHOW_DEFAULTS]` names the defaults in its help. A frozenset behind the dataclass names
    fields that get no flag.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, bool, list[Any]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        optional = get_origin(kind) is Annotated and is_dataclass(kind.__metadata__[0])
        source = kind.__metadata__[0] if optional else kind
        if not is_dataclass(source):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        extras = kind.__metadata__[1:] if optional else ()
        without = next((extra for extra in extras if isinstance(extra, frozenset)), frozenset())
        flagged = [each for each in fields(source) if "help" in each.metadata and each.name not in without]
        groups[name] = (source, optional, flagged)
        show = not optional or SHOW_DEFAULTS in extras
        types = get_type_hints(source)
        parameters += [_flag(each, types[each.name], optional, show) for each in flagged]

    @wraps(function)
    def command(**values: Any) -> None:
        for name, (kind, optional, flagged) in groups.items():
            types = get_type_hints(kind)
            given = {each.name: _value(each, types[each.name], values.pop(each.name)) for each in flagged}
            given = {key: value for key, value in given.items() if value not in (None, (), {})}
            values[name] = given if optional else kind(**given)
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _flag(field: Any, kind: Any, optional: bool, show: bool) -> inspect.Parameter:
    """A field as a flag, with the `help`, `flags` and `commas` of its metadata."""
    names, default = field.metadata.get("flags", ()), field.default
    if kind is bool and not default and not optional:
        names = [f"--{field.name.replace('_', '-')}"]  # without typer's --no- twin
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else None if default is None else str(default)
    if field.metadata.get("commas"):
        kind, default = str | None, None
    elif isinstance(kind, UnionType) and str in get_args(kind):
        kind, default = str | None, None if optional else default
    elif get_origin(kind) in (tuple, Mapping):
        kind, default = list[get_args(kind)[0] if get_origin(kind) is tuple else str], []  # type: ignore[misc]
    elif optional:
        kind, default = kind | None, None
    # As a part of the help, because typer puts a text that is given as `show_default` in parentheses.
    told = f"  [default: {shown}]" if show and shown and default is None else ""
    annotation: Any = Annotated[kind, typer.Option(*names, help=field.metadata["help"] + told)]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(field: Any, kind: Any, value: Any) -> Any:
    if field.metadata.get("commas"):
        return None if value is None else split(value, f"--{field.name.replace('_', '-')}", kind)
    if field.metadata.get("file") and value is not None:
        return _read(value, f"--{field.name.replace('_', '-')}")
    if not isinstance(value, list):
        return value
    if get_origin(kind) is tuple:
        return tuple(value)
    try:
        return {int(token): float(bias) for token, bias in (pair.split("=") for pair in value)}
    except ValueError:
        raise UserError(f"--logit-bias must be ID=BIAS, such as 42=-5, not {' '.join(value)!r}.") from None


def _read(path: str, flag: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{flag} needs a file, but {path} cannot be read: {reason}.") from None


def split(text: str, flag: str, kind: Any = tuple[int, ...]) -> tuple[Any, ...]:
    """The values in a text that are joined by commas; `kind` is the type of the tuple."""
    sequence = next((each for each in get_args(kind) if get_origin(each) in (tuple, Sequence)), kind)
    convert = get_args(sequence)[0]
    try:
        return tuple(convert(word) for word in text.split(","))
    except ValueError:
        what = "whole numbers" if convert is int else "numbers"
        raise UserError(f"{flag} must be {what} joined by commas, not {text!r}.") from None
