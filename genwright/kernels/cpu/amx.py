"""Broken AMX: some virtual machines advertise the matrix unit but hide its shape, and oneDNN then dies on bf16."""

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# CPUID's EAX for leaf EDI, subleaf ESI: push rbx; mov eax, edi; mov ecx, esi; cpuid; pop rbx; ret.
_CPUID_EAX = bytes.fromhex("53 89f8 89f1 0fa2 5b c3")
# Then oneDNN may have settled its instruction set before we could say anything.
_TORCH_CAME_FIRST = "torch" in sys.modules


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux names them; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1].split() for line in lines if line.startswith("flags")), ()))


def has_bf16() -> bool:
    """Whether bf16 products run in hardware."""
    return "avx512_bf16" in cpu_flags() or ("amx_bf16" in cpu_flags() and not amx_is_broken())


@cache
def amx_is_broken() -> bool:
    """Whether AMX is advertised while CPUID leaf 0x1D, from which oneDNN reads the tiles' shape, is empty."""
    if "amx_tile" not in cpu_flags() or platform.machine() != "x86_64":
        return False
    return cpuid_eax(0x1D, 0) == 0 or cpuid_eax(0x1D, 1) == 0


def cpuid_eax(leaf: int, subleaf: int) -> int:
    """What an x86-64 processor says of itself; 0 where the system forbids to ask."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return 0
    page.write(_CPUID_EAX)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    eax: int = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)(address)(leaf, subleaf)
    return eax


def disable_broken_amx() -> None:
    """Bar oneDNN from a broken AMX; it listens until its first operation."""
    if amx_is_broken():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@contextmanager
def safe_products() -> Iterator[None]:
    """Where oneDNN may have chosen a broken AMX already, go without it."""
    if not (_TORCH_CAME_FIRST and amx_is_broken()):
        yield
        return
    from torch.backends import mkldnn

    before = bool(mkldnn.enabled)
    setattr(mkldnn, "enabled", False)  # noqa: B010 - a property of the module, which mypy takes for its getter
    try:
        yield
    finally:
        setattr(mkldnn, "enabled", before)  # noqa: B010
