"""Load torch's libraries in a thread, while other modules are imported; that takes a sixth of `import torch`."""

import ctypes
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Loading a library does not hold Python's lock, unlike the import of a module that needs it."""
    threading.Thread(target=_load, daemon=True).start()


def _load() -> None:
    found = find_spec("torch")
    library = Path(found.origin).parent / "lib" / "libtorch_python.so" if found and found.origin else None
    if library is not None and library.exists():
        with suppress(OSError):  # `import torch` will say what is wrong
            ctypes.CDLL(str(library))
