"""C++ of this folder, compiled for this processor at its first use."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

from genwright.errors import GenwrightWarning
from genwright.home import cache_folder, lock
from genwright.kernels.cpu.amx import cpu_flags

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC")


@cache
def library(source: str, **defines: str | int) -> ctypes.CDLL | None:
    """`source`.cpp with those names defined, if it can be had."""
    path = build(cache_folder() / "kernels", source, **defines)
    try:
        # It leaves GOMP_parallel open, which torch's OpenMP runtime fills in.
        return ctypes.CDLL(str(path)) if path else None
    except OSError:
        return None


def build(folder: Path, source: str, **defines: str | int) -> Path | None:
    """The library in that folder, compiled now if it is not there; None where that does not work."""
    flags = (*FLAGS, *(f"-D{name}={value}" for name, value in defines.items()))
    processor = " ".join((platform.system(), platform.machine(), *sorted(cpu_flags())))
    main = FOLDER / f"{source}.cpp"
    texts = [path.read_text(encoding="utf-8") for path in (main, *sorted(FOLDER.glob("*.h")))]
    key = hashlib.sha256("\0".join((*texts, *flags, processor)).encode()).hexdigest()
    target = folder / f"{source}-{key[:16]}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        _warn("No C++ compiler (c++, g++ or clang++) was found; install one, or name it in CXX")
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if not target.exists():  # another process may have been faster
                part = Path(scratch) / target.name
                command = [compiler, *flags, "-o", str(part), str(main)]
                subprocess.run(command, capture_output=True, check=True, timeout=60)
                part.rename(target)
    except OSError as error:
        _warn(f"{folder} cannot be written: {error.strerror}")
        return None
    except subprocess.SubprocessError:
        _warn(f"{compiler} could not compile {main.name}")
        return None
    return target


def _warn(why: str) -> None:
    """Say what is lost; Python shows a warning once per process."""
    lost = "Without the C++ kernels decoding on a CPU takes two to three times as long."
    warnings.warn(f"{why}. {lost}", GenwrightWarning, stacklevel=1)
