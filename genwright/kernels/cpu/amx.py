"""Whether AMX can be used: some virtual machines report AMX but not its tile shape, and oneDNN crashes on bf16."""

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# Machine code that returns CPUID's EAX: push rbx; mov eax, edi; mov ecx, esi; cpuid; pop rbx; ret.
_CPUID_EAX = bytes.fromhex("53 89f8 89f1 0fa2 5b c3")
# Linux's system call with which a process asks for the tile registers; before that, using them is a crash.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# If so, oneDNN may have chosen its instruction set already, and the environment variable comes too late.
_TORCH_IMPORTED_FIRST = "torch" in sys.modules


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as in /proc/cpuinfo; empty on other systems than Linux."""
    return frozenset(_cpuinfo("flags", "Features").split())  # on x86 and on ARM


def cpu_model() -> str:
    """The processor's name as in /proc/cpuinfo; empty if it has none there."""
    return _cpuinfo("model name")


def _cpuinfo(*names: str) -> str:
    """The first value in /proc/cpuinfo that has one of these names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def has_bf16() -> bool:
    """Whether the processor multiplies bf16 in hardware."""
    return "avx512_bf16" in cpu_flags() or ("amx_bf16" in cpu_flags() and not amx_is_broken())


@cache
def has_amx_int8() -> bool:
    """Whether this process may multiply int8 by AMX; asks the system for the permission, which its threads share."""
    if "amx_int8" not in cpu_flags() or platform.machine() != "x86_64" or amx_is_broken():
        return False
    return arch_prctl(_REQUEST_PERMISSION, _TILE_DATA) == 0


def arch_prctl(code: int, value: int) -> int:
    """0, or -1 if the system refuses."""
    result: int = ctypes.CDLL(None).syscall(*map(ctypes.c_long, (_ARCH_PRCTL, code, value)))
    return result


@cache
def amx_is_broken() -> bool:
    """Whether AMX is reported but CPUID leaf 0x1D, from which oneDNN reads the tile shape, is empty."""
    if "amx_tile" not in cpu_flags() or platform.machine() != "x86_64":
        return False
    return cpuid_eax(0x1D, 0) == 0 or cpuid_eax(0x1D, 1) == 0


def cpuid_eax(leaf: int, subleaf: int) -> int:
    """EAX of a CPUID leaf on an x86-64 processor; 0 if the system forbids executable memory."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return 0
    page.write(_CPUID_EAX)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    eax: int = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)(address)(leaf, subleaf)
    return eax


def disable_broken_amx() -> None:
    """Keep oneDNN from using a broken AMX; it reads this variable at its first operation."""
    if amx_is_broken():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@contextmanager
def without_broken_amx() -> Iterator[None]:
    """Disable oneDNN if torch was imported before genwright and AMX is broken."""
    if not (_TORCH_IMPORTED_FIRST and amx_is_broken()):
        yield
        return
    from torch.backends import mkldnn

    before = bool(mkldnn.enabled)
    setattr(mkldnn, "enabled", False)  # noqa: B010 - a module property, which mypy does not let us assign to
    try:
        yield
    finally:
        setattr(mkldnn, "enabled", before)  # noqa: B010
