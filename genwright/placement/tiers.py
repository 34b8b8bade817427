"""Tiers: GPU memory, CPU memory and disk; what a model holds in each, and what moves between them."""

from collections import Counter
from enum import Enum
from threading import Lock

import torch

from genwright.placement.disk import DiskFile
from genwright.placement.host_memory import HostMemory
from genwright.placement.offload_folder import OffloadFolder


class Tier(Enum):
    """A kind of memory. Where no GPU computes, the tier GPU is the memory that the CPU computes in."""

    GPU = "GPU"
    CPU = "CPU"
    DISK = "disk"


class TierUse:
    """The bytes that a model holds in each tier, their peaks, and the bytes that were moved; for any thread."""

    def __init__(self) -> None:
        self.held: Counter[Tier] = Counter()
        self.peak: Counter[Tier] = Counter()
        self.moved: Counter[tuple[Tier, Tier]] = Counter()  # from, to
        self._lock = Lock()

    def hold(self, tier: Tier, count: int) -> None:
        """Add bytes to a tier; a negative count frees them."""
        with self._lock:
            self.held[tier] += count
            self.peak[tier] = max(self.peak[tier], self.held[tier])

    def move(self, source: Tier, target: Tier, count: int) -> None:
        with self._lock:
            self.moved[source, target] += count


class Tiers:
    """Makes one model's buffers and files in each tier, and counts their bytes."""

    def __init__(self, device: torch.device, pin: bool = True, folder: OffloadFolder | None = None) -> None:
        self.device, self.use = device, TierUse()
        self.host = HostMemory(pin and device.type == "cuda")
        self._folder = folder

    def gpu(self, size: int) -> torch.Tensor:
        """Bytes of the device that computes."""
        self.use.hold(Tier.GPU, size)
        on_cpu = self.device.type == "cpu"
        return self.host.empty(size) if on_cpu else torch.empty(size, dtype=torch.uint8, device=self.device)

    def cpu(self, size: int) -> torch.Tensor:
        """Bytes of CPU memory, pinned if `host.pinned` is still true afterwards."""
        self.use.hold(Tier.CPU, size)
        return self.host.empty(size)

    def disk(self, name: str, size: int) -> DiskFile:
        assert self._folder is not None
        self.use.hold(Tier.DISK, size)
        return self._folder.create(name, size)

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.close()
