"""Tiers: GPU memory, CPU memory and disk; what a model holds in each, and what moves between them."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from threading import Lock

import torch

from genwright.placement.disk import DiskFile
from genwright.placement.host_memory import HostMemory
from genwright.placement.offload_folder import OffloadFolder

PREFILL, DECODING = "prefill", "decoding"  # stages of a request


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

    def __init__(
        self,
        device: torch.device,
        pin: bool = True,
        folder: OffloadFolder | None = None,
        gpu_limit: int | None = None,  # bytes that PyTorch may allocate on a GPU until `close`
    ) -> None:
        self.device, self.use = device, TierUse()
        self._limited = device.type == "cuda" and gpu_limit is not None
        if self._limited and gpu_limit is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_limit / total), device)
            # Else gaps between tensors add up to several hundred megabytes, which count towards the limit.
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        self.host = HostMemory(pin and device.type == "cuda")
        self._folder = folder
        self.stage = PREFILL
        self.seconds: dict[str, float] | None = None  # of each kind of move and stage, while they are measured

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Measure moves of a kind, if `seconds` is set; the host then waits for the device before and after them."""
        if self.seconds is None:
            yield
            return
        started = self._synchronized()
        yield
        name = f"{kind}_{self.stage}"
        self.seconds[name] = self.seconds.get(name, 0.0) + self._synchronized() - started

    def _synchronized(self) -> float:
        """The time when the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def gpu(self, size: int) -> torch.Tensor:
        """Bytes of the device that computes."""
        self.use.hold(Tier.GPU, size)
        if self.device.type == "cpu":
            return self.host.empty(size)
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def cpu(self, size: int) -> torch.Tensor:
        """Bytes of CPU memory, pinned if `host.pinned` is still true afterwards."""
        self.use.hold(Tier.CPU, size)
        return self.host.empty(size)

    def disk(self, name: str, size: int) -> DiskFile:
        assert self._folder is not None
        self.use.hold(Tier.DISK, size)
        return self._folder.create(name, size)

    def close(self) -> None:
        """Remove the files and a GPU's limit, and wait for what moves, because the caller frees its memory next."""
        if self._limited:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
        if self._folder is not None:
            self._folder.close()
        self._synchronized()
