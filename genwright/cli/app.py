"""The settings of every verb's typer application, and arguments that several verbs share."""

from typing import Annotated, Any

import typer

Source = Annotated[str, typer.Argument(metavar="SRC", help="A checkpoint: a folder, a file, a name, or random:NAME.")]
Arch = Annotated[str | None, typer.Option(help="The named shape of a checkpoint that has no configuration.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def new_app(**settings: Any) -> typer.Typer:
    """A typer application without typer's shell completion, markup and tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)
