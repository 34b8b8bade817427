"""Import an original's module names from our folder for one test; two originals have modules of the same names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from genwright.dropin.run import folder


@contextmanager
def imported_from(name: str) -> Iterator[None]:
    """Top-level names of the drop-in's folder come from it, and are forgotten afterwards."""
    names = {path.stem for path in folder(name).iterdir()}

    def forget() -> None:
        for module in [module for module in sys.modules if module.partition(".")[0] in names]:
            del sys.modules[module]

    forget()
    sys.path.insert(0, str(folder(name)))
    try:
        yield
    finally:
        sys.path.remove(str(folder(name)))
        forget()
