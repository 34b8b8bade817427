"""HostMemory: CPU memory that a GPU copies from and to while it computes."""

import mmap
import warnings
import weakref
from contextlib import suppress

import torch

from genwright.errors import GenwrightWarning


class HostMemory:
    """Buffers of CPU memory, pinned where there is a GPU and the system allows it; freed with this object.

    The memory is registered with CUDA by itself, because torch's allocator rounds a pinned buffer up to a power of two.
    """

    def __init__(self, pin: bool) -> None:
        self.pinned = pin and torch.cuda.is_available()
        self._registered: list[tuple[int, mmap.mmap]] = []
        weakref.finalize(self, _unregister, self._registered)

    def empty(self, size: int) -> torch.Tensor:
        """A buffer uint8 [size], at the start of a memory page."""
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = torch.frombuffer(memory, dtype=torch.uint8)[:size]
        if self.pinned and size:
            buffer.zero_()  # several threads get the pages from the system, which pinning would do with one
            address = buffer.data_ptr()
            if int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)):
                with suppress(RuntimeError):  # takes the error, which the next kernel would report otherwise
                    torch.zeros(1, device="cuda")
                self._use_pageable(size)
            else:
                self._registered.append((address, memory))
        return buffer

    def free(self, address: int) -> None:
        """Unpin the buffer that starts there, which nobody uses any more."""
        gone = [each for each in self._registered if each[0] == address]
        _unregister(gone)
        for each in gone:
            self._registered.remove(each)

    def _use_pageable(self, size: int) -> None:
        self.pinned = False
        warnings.warn(
            f"{size / 1e9:.2f} GB of CPU memory could not be pinned; pageable memory is used from here on, which moves "
            "to the GPU more slowly.",
            GenwrightWarning,
            stacklevel=2,
        )


def _unregister(registered: list[tuple[int, mmap.mmap]]) -> None:
    for address, _ in registered:
        torch.cuda.cudart().cudaHostUnregister(address)
