"""Compile this folder's C++ for this processor at first use."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

from genwright.errors import GenwrightWarning
from genwright.home import cache_folder, lock
from genwright.kernels.cpu.amx import cpu_flags

FOLDER = Path(__file__).parent
NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
# On macOS, a linker must be told that OpenMP's functions will be there when the library is loaded.
LATER = ("-undefined", "dynamic_lookup") if platform.system() == "Darwin" else ()
FLAGS = ("-O3", NATIVE, "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", *LATER)


@cache
def load_library(source: str, **defines: str | int) -> ctypes.CDLL | None:
    """`source`.cpp, compiled with these macros; None if it cannot be compiled or loaded."""
    path = build(cache_folder() / "kernels", source, **defines)
    try:
        # GOMP_parallel is resolved from the OpenMP runtime that torch has loaded.
        return ctypes.CDLL(str(path)) if path else None
    except OSError:
        return None


def build(folder: Path, source: str, **defines: str | int) -> Path | None:
    """The path of the library in `folder`, compiled if missing; None if that fails."""
    flags = (*FLAGS, *(f"-D{name}={value}" for name, value in defines.items()))
    processor = " ".join((platform.system(), platform.machine(), *sorted(cpu_flags()), _apple_name()))
    main = FOLDER / f"{source}.cpp"
    texts = [path.read_text(encoding="utf-8") for path in (main, *sorted(FOLDER.glob("*.h")))]
    key = hashlib.sha256("\0".join((*texts, *flags, processor)).encode()).hexdigest()
    target = folder / f"{source}-{key[:16]}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        _warn("No C++ compiler (c++, g++ or clang++) was found; install one or set CXX")
        return None
    if sys.stderr.isatty():  # a person waits
        warnings.warn("Compiling kernels for this processor; they are kept for later runs.", GenwrightWarning, 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if not target.exists():  # another process may have built it meanwhile
                part = Path(scratch) / target.name
                command = [compiler, *flags, "-o", str(part), str(main)]
                subprocess.run(command, capture_output=True, check=True, timeout=60)
                part.rename(target)
    except OSError as error:
        _warn(f"Folder {folder} cannot be written: {error.strerror}")
        return None
    except subprocess.SubprocessError:
        _warn(f"Compiler {compiler} failed on {main.name}")
        return None
    return target


@cache
def _apple_name() -> str:
    """The processor's name on macOS, which has no list of its features; empty on other systems."""
    if platform.system() != "Darwin":
        return ""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _warn(why: str) -> None:
    """Python shows the same warning once per process."""
    effect = "PyTorch's kernels are used instead, and decoding on a CPU takes two to three times as long."
    warnings.warn(f"{why}. {effect}", GenwrightWarning, stacklevel=1)
