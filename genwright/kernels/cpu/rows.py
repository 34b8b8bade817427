"""C++ kernels for the small copies of a step, so that a recording holds the whole step."""

import ctypes
from functools import cache

import torch

from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Progress, Recording, address


class Gather(ctypes.Structure):
    """`Gather` of rows.cpp."""

    _fields_ = (
        ("progress", Progress),
        *((name, ctypes.c_void_p) for name in ("table", "numbers", "to")),
        *((name, ctypes.c_int64) for name in ("rows", "row_bytes")),
    )


class Widen(ctypes.Structure):
    """`Widen` of rows.cpp."""

    _fields_ = (
        ("progress", Progress),
        *((name, ctypes.c_void_p) for name in ("from", "to")),
        ("count", ctypes.c_int64),
    )


def record_gather(recording: Recording, table: torch.Tensor, numbers: torch.Tensor, result: torch.Tensor) -> bool:
    """Record result = table[numbers], which was computed already; False if there is no kernel for these tensors."""
    library, tensors = kernel(), (table, numbers, result)
    if library is None or not all(tensor.is_contiguous() for tensor in tensors):
        return False
    if numbers.dtype != torch.int64 or numbers.dim() != 1 or table.dim() != 2:
        return False
    pointers = (tensor.data_ptr() for tensor in tensors)
    arguments = Gather(Progress(), *pointers, len(numbers), table.shape[1] * table.itemsize)
    recording.record(address(library, "gather_part"), arguments, len(numbers), *tensors)
    return True


def record_widening(recording: Recording, x: torch.Tensor, result: torch.Tensor) -> bool:
    """Record result = x.float(), which was computed already; False if there is no kernel for these tensors."""
    library = kernel()
    if library is None or x.dtype != torch.bfloat16 or result.dtype != torch.float32:
        return False
    if not (x.is_contiguous() and result.is_contiguous()):
        return False
    arguments = Widen(Progress(), x.data_ptr(), result.data_ptr(), x.numel())
    recording.record(address(library, "widen_part"), arguments, x.numel(), x, result)
    return True


@cache
def kernel() -> ctypes.CDLL | None:
    """rows.cpp; None if it cannot be compiled."""
    return load_library("rows")
