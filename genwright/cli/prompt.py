"""Reads messages that are typed or pasted at a prompt."""

import select
import sys
from collections.abc import Callable

_PASTE_SECONDS = 0.02  # within which the next line of a pasted text arrives


def open_prompt(text: str) -> Callable[[], str]:
    """Return a function that reads a message: one line, or several if they were pasted."""
    if not sys.stdin.isatty():
        return lambda: input(text)
    try:
        import readline  # gives input() editing and history
    except ImportError:
        return lambda: _read_lines(text)
    if "libedit" in (readline.__doc__ or ""):
        return lambda: _read_lines(text)
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
    return lambda: input(text)


def _read_lines(text: str) -> str:
    """Read the lines that arrive together as one message, for terminals without bracketed paste."""
    lines = [input(text)]
    while select.select([sys.stdin], [], [], _PASTE_SECONDS)[0]:
        lines.append(input())
    return "\n".join(lines)
