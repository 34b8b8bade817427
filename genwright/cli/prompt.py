"""What a person types or pastes at a prompt."""

import select
import sys
from collections.abc import Callable

PASTE = 0.02  # seconds in which the next line of a pasted text comes


def open_prompt(text: str) -> Callable[[], str]:
    """A function that reads a message: a line, or a pasted text of several."""
    if not sys.stdin.isatty():
        return lambda: input(text)
    try:
        import readline  # gives input() a history and editing
    except ImportError:
        return lambda: _read_lines(text)
    if "libedit" in (readline.__doc__ or ""):
        return lambda: _read_lines(text)
    readline.parse_and_bind("set enable-bracketed-paste on")  # which Python itself turns off
    return lambda: input(text)


def _read_lines(text: str) -> str:
    """Lines that come together, where no bracketed paste tells what is one text."""
    lines = [input(text)]
    while select.select([sys.stdin], [], [], PASTE)[0]:
        lines.append(input())
    return "\n".join(lines)
