"""Arena: main memory for weights in huge pages, because a core of a virtual machine read twice as fast from them."""

import ctypes
import math
import sys
from functools import cache

import torch
from torch import Tensor

HUGE = 2 << 20
CHUNK = 64 << 20  # bytes that are allocated at a time
ALIGNMENT = 64
ADVICE = 14  # MADV_HUGEPAGE


class Arena:
    """Tensors one after the other in large chunks; a chunk lives as long as any of its tensors."""

    def __init__(self) -> None:
        self._chunk, self._used = torch.empty(0, dtype=torch.uint8), 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        if self._used + size > len(self._chunk):
            self._chunk, self._used = _allocate(max(CHUNK, -(-size // HUGE) * HUGE)), 0
        tensor = self._chunk[self._used : self._used + size].view(dtype).view(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return tensor

    def copy(self, tensor: Tensor) -> Tensor:
        return self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _allocate(size: int) -> Tensor:
    """Bytes that begin with a huge page; pages that are never written take no memory."""
    memory = torch.empty(size + HUGE, dtype=torch.uint8)
    chunk = memory[-memory.data_ptr() % HUGE :][:size]
    if (libc := _libc()) is not None:
        libc.madvise(ctypes.c_void_p(chunk.data_ptr()), ctypes.c_size_t(size), ADVICE)  # if refused, pages stay small
    return chunk


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
