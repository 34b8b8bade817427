"""Where Genwright keeps what it can make or fetch again."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """GENWRIGHT_HOME, else genwright under the user's cache folder."""
    home = os.environ.get("GENWRIGHT_HOME")
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() if home else Path(base).expanduser() / "genwright"


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time; the system drops the lock of a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernel_file(name: str) -> Path:
    """Where a compiled kernel, or what was learnt about kernels, is kept."""
    return cache_folder() / "kernels" / name


def keep(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a folder that cannot be written to costs time at the next start, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        pass
