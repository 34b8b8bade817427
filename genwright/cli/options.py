"""Flags that several verbs share, read from the dataclasses that they fill."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.catalogue import DEFAULT
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.llm import LLM

Model = Annotated[str, typer.Option(help="A checkpoint's path, a name from `genwright pull`, or random:NAME.")]
DEFAULT_MODEL = DEFAULT


def load(model: str, config: EngineConfig) -> "LLM":
    """A model, with a bar that shows how far its loading has come."""
    from genwright.text.llm import LLM

    with bar("Loading") as progress:
        return LLM(model, config, progress)


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter that is a dataclass into one flag per field.

    A parameter `Annotated[dict, DATACLASS]` has the same flags without defaults, and gets those that were given.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, bool]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        optional = get_origin(kind) is Annotated and is_dataclass(kind.__metadata__[0])
        source = kind.__metadata__[0] if optional else kind
        if not is_dataclass(source):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = (source, optional)
        types = get_type_hints(source)
        parameters += [_flag(field, types[field.name], optional) for field in fields(source)]

    @wraps(function)
    def command(**values: Any) -> None:
        for name, (kind, optional) in groups.items():
            flags = {field.name: _value(field, values.pop(field.name)) for field in fields(kind)}
            given = {key: value for key, value in flags.items() if not optional or value not in (None, (), {})}
            values[name] = given if optional else kind(**given)
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _flag(field: Any, kind: Any, optional: bool = False) -> inspect.Parameter:
    """A field of a dataclass as a flag, with the `help` and maybe the `flags` of its metadata."""
    names = field.metadata.get("flags", ())
    if kind is bool and not field.default:
        names = [f"--{field.name.replace('_', '-')}"]  # without typer's --no- twin
    default = field.default
    if get_origin(kind) in (tuple, Mapping):
        kind, default = list[get_args(kind)[0] if get_origin(kind) is tuple else str], []  # type: ignore[misc]
    elif optional:
        kind, default = kind | None, None
    annotation: Any = Annotated[kind, typer.Option(*names, help=field.metadata["help"])]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(field: Any, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if get_origin(field.type) is tuple:
        return tuple(value)
    try:
        return {int(token): float(bias) for token, bias in (pair.split("=") for pair in value)}
    except ValueError:
        raise UserError(f"--logit-bias should be ID=BIAS, as in 42=-5, and is {' '.join(value)!r}.") from None
