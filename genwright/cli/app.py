"""How every verb's typer application is set up."""

from typing import Any

import typer


def new_app(**settings: Any) -> typer.Typer:
    """A typer application without shell completion, markup or tracebacks of its own."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)
