"""The settings of every verb's typer application, and arguments that several verbs share."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.errors import UserError

Source = Annotated[str, typer.Argument(metavar="SRC", help="A checkpoint: a folder, a file, a name, or random:NAME.")]
Arch = Annotated[str | None, typer.Option(help="The named shape of a checkpoint that has no configuration.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def new_app(**settings: Any) -> typer.Typer:
    """A typer application without typer's shell completion, markup and tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def check_writable(path: Path) -> None:
    """Raise an error if a file cannot be written, before the work whose result it gets."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder {path.parent} to write {path.name} to.")
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; name a file to write.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UserError(f"{path} cannot be written to.")
