"""100,000 characters of a text in the public domain: the Acts of the Apostles, King James Version.

The verses are those of the package pybible, which is read and not imported. `python tests/public_text.py FILE` writes
them to a file.
"""

import ast
import hashlib
import sys
from importlib.metadata import distribution
from pathlib import Path

ACTS = "44:"  # the book's number in front of each verse's chapter and number
SHA256 = "4e6a9e59ed54701e145a558a1ce1acc5fa2414bd0a967b1bf64c9411a7efe133"


def public_text(characters: int = 100_000) -> str:
    """The text's beginning, one verse per line."""
    source = Path(str(distribution("pybible").locate_file("pybible/Bible.py"))).read_text(encoding="utf-8")
    verses = ast.literal_eval(source.partition("=")[2].strip())
    text = "\n".join(verse.partition(" ")[2] for verse in verses if verse.startswith(ACTS))[:100_000]
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    return text[:characters]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(public_text(), encoding="utf-8")
