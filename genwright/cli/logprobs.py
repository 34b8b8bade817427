"""Log-probabilities as a table for people."""

import sys
from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genwright.text.engine.request import Logprob
    from genwright.text.tokenizer.tokenizer import Tokenizer

_GAP = "\ue000"  # a space at which no line is broken; no token's repr has this character


def show_logprobs(title: str, rows: "Sequence[Logprob | None] | None", tokenizer: "Tokenizer | None") -> None:
    """Print a row per token: its id and text, how likely the model found it, and what else was likely."""
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def name(token: int) -> str:
        return repr(tokenizer.spelling(token)).replace(" ", _GAP) if tokenizer else str(token)

    table = Table(title, "id", "logprob", "probability", "likeliest", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        if row is not None:  # nothing predicts a prompt's first token
            others = ", ".join(f"{name(token)}{_GAP}{x:.2f}" for token, x in row.top.items())
            cells = (name(row.id), str(row.id), f"{row.logprob:.3f}", f"{exp(row.logprob):.1%}", others)
            table.add_row(*map(Text, cells))  # plain text: a token may look like markup
    width = None if sys.stdout.isatty() else 10_000  # a file's lines are not wrapped
    console = Console(width=width)
    with console.capture() as text:
        console.print(table)
    print(f"\n{text.get().replace(_GAP, ' ')}", end="")
