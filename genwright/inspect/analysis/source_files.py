"""Read text files that may be anything: each is opened once, must be regular, and is read up to a size."""

import io
import os
import stat
import tokenize
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.notebooks import notebook_source

LARGEST_SCRIPT = 1_000_000  # bytes; more is not written by hand
LARGEST_DATA = 20_000_000


def read_script(path: Path) -> str:
    """A script's text in the encoding that it declares; its line ends stay, so that untouched lines do too.

    Of a Jupyter notebook it is the Python of its cells.
    """
    if path.suffix == ".ipynb":
        return notebook_source(read_data(path, "notebook"), path.name)
    data = read_bytes(path, "script", LARGEST_SCRIPT)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise UserError(f"The script {path} cannot be read: {error}.") from error


def encoding_of(text: str) -> str:
    """The encoding that a script declares, which is then also that of its rewrite."""
    return tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0]


def read_data(path: Path, what: str) -> str:
    """The text of a manifest or scenario, in UTF-8."""
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"The {what} {path} cannot be read: it is not UTF-8 text ({error.reason}).") from error


def read_bytes(path: Path, what: str, largest: int = LARGEST_DATA) -> bytes:
    """The content of a regular file up to a size; `what` names it in errors."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"The {what} {path} is not a regular file.")
            data = file.read(largest + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"The {what} {path} cannot be read: {reason}.") from error
    if len(data) > largest:
        raise UserError(f"The {what} {path} has more than {largest:,} bytes, which is the most that is read.")
    return data
