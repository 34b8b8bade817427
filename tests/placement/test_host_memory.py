"""CPU memory for placed weights."""

import mmap

import pytest
import torch

from genwright.errors import GenwrightWarning
from genwright.placement import host_memory
from genwright.placement.host_memory import HostMemory


class Driver:
    """Registers memory until it holds as much as it may."""

    def __init__(self, most: int):
        self.most, self.held = most, dict[int, int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if sum(self.held.values()) + size > self.most:
            return 2
        self.held[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.held[address]
        return 0


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001])
def test_buffers_begin_at_a_page(size):
    buffer = HostMemory(pin=False).empty(size)
    assert buffer.shape == (size,) and buffer.dtype == torch.uint8
    assert size == 0 or buffer.data_ptr() % mmap.PAGESIZE == 0
    assert torch.equal(buffer.fill_(7), torch.full((size,), 7, dtype=torch.uint8))


def test_memory_that_cannot_be_pinned_is_pageable_with_one_sentence(monkeypatch):
    driver = Driver(3 * 4096)
    monkeypatch.setattr(host_memory.torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(host_memory.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host_memory.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(host_memory.torch, "zeros", lambda *_, **__: None)
    memory = HostMemory(pin=True)
    first = memory.empty(2 * 4096)
    assert memory.pinned and driver.held == {first.data_ptr(): 2 * 4096}
    with pytest.warns(GenwrightWarning, match="could not be pinned; pageable memory is used") as told:
        others = [memory.empty(2 * 4096) for _ in range(3)]
    assert len(told) == 1 and not memory.pinned and len(others[2]) == 2 * 4096
    del memory
    assert not driver.held
