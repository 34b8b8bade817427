"""The cache folder, for downloads, compiled kernels and other files that can be made again."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """GENWRIGHT_HOME if set, otherwise `genwright` in the user's cache folder."""
    home = os.environ.get("GENWRIGHT_HOME")
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() if home else Path(base).expanduser() / "genwright"


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the system releases the lock of a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernel_file(name: str) -> Path:
    """The path of a compiled kernel or of a table of kernel timings."""
    return cache_folder() / "kernels" / name


def keep(path: Path, data: bytes) -> None:
    """Write a file atomically; errors are ignored, because the file can be made again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        pass
