"""Prints log-probabilities as a table."""

import sys
from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genwright.text.engine.request import Logprob
    from genwright.text.tokenizer.tokenizer import Tokenizer

_NO_BREAK = "\ue000"  # stands for a space at which rich must not wrap; it cannot occur in a token's repr


def show_logprobs(title: str, rows: "Sequence[Logprob | None] | None", tokenizer: "Tokenizer | None") -> None:
    """Print a row per token: text, id, log-probability, probability and the most likely alternatives."""
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def name(token: int) -> str:
        return repr(tokenizer.token_text(token)).replace(" ", _NO_BREAK) if tokenizer else str(token)

    table = Table(title, "id", "logprob", "probability", "likeliest", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        if row is not None:  # the first token of a prompt has none
            others = ", ".join(f"{name(token)}{_NO_BREAK}{x:.2f}" for token, x in row.top.items())
            cells = (name(row.id), str(row.id), f"{row.logprob:.3f}", f"{exp(row.logprob):.1%}", others)
            table.add_row(*map(Text, cells))  # Text, because a token may look like rich's markup
    width = None if sys.stdout.isatty() else 10_000  # do not wrap lines in a file
    console = Console(width=width)
    with console.capture() as text:
        console.print(table)
    print(f"\n{text.get().replace(_NO_BREAK, ' ')}", end="")
