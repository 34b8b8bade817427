"""Texts in the public domain: 100,000 characters of the Acts of the Apostles, and Luke; King James Version.

The verses are those of the package pybible, which is read and not imported. `python tests/public_text.py FILE` writes
the Acts to a file, and with `luke` after it Luke.
"""

import ast
import hashlib
import sys
from importlib.metadata import distribution
from pathlib import Path

ACTS, LUKE = "44:", "42:"  # the book's number in front of each verse's chapter and number
SHA256 = "4e6a9e59ed54701e145a558a1ce1acc5fa2414bd0a967b1bf64c9411a7efe133"


def public_text(characters: int = 100_000) -> str:
    """The beginning of the Acts, for evaluations."""
    text = _book(ACTS)[:100_000]
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    return text[:characters]


def other_text(characters: int = 55_000) -> str:
    """The beginning of Luke, for calibrations: another text of the same kind."""
    return _book(LUKE)[:characters]


def _book(number: str) -> str:
    """One verse per line."""
    source = Path(str(distribution("pybible").locate_file("pybible/Bible.py"))).read_text(encoding="utf-8")
    verses = ast.literal_eval(source.partition("=")[2].strip())
    return "\n".join(verse.partition(" ")[2] for verse in verses if verse.startswith(number))


if __name__ == "__main__":
    text = other_text() if sys.argv[2:] == ["luke"] else public_text()
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
