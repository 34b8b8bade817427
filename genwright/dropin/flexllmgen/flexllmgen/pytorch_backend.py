"""TorchDevice, TorchDisk and TorchMixedDevice: names of places; the engine moves the tensors."""

from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

import psutil
import torch

from genwright.device import peak_memory

_GB = 1 << 30


class Closable(Protocol):
    def close(self) -> None: ...


class DeviceType(Enum):
    CPU = auto()
    CUDA = auto()
    DISK = auto()
    MIXED = auto()


class TorchDevice:
    """A GPU or the CPU; on a machine without a GPU, `cuda:0` is a name for the CPU."""

    def __init__(self, name: str):
        self.name = name
        self.dev = torch.device(name)
        self.device_type = DeviceType[self.dev.type.upper()]

    @property
    def engine_device(self) -> str:
        """The `device` setting of the engine."""
        return "auto" if self.device_type is DeviceType.CUDA and not torch.cuda.is_available() else self.name

    def synchronize(self) -> None:
        if self.engine_device.startswith("cuda"):
            torch.cuda.synchronize(self.dev)

    def mem_stats(self) -> tuple[int, int]:
        """Bytes in use and their peak: of the GPU's allocator, or of this process."""
        if self.engine_device.startswith("cuda"):
            return torch.cuda.memory_allocated(self.dev), peak_memory(self.dev)
        if self.device_type is DeviceType.CUDA:
            return 0, 0  # there is none, and the process is counted as the CPU's
        return psutil.Process().memory_info().rss, peak_memory(self.dev)

    def print_stats(self, output_file: str | None = None) -> tuple[int, int]:
        """Print the memory in use, or write it to a file."""
        self.synchronize()
        current, peak = self.mem_stats()
        report = f"TorchDevice: {self.name}\n  cur_mem: {current / _GB:.4f} GB,  peak_mem: {peak / _GB:.4f} GB"
        if output_file is None:
            print(report)
        else:
            Path(output_file).write_text(f"{report}\n", encoding="utf-8")
        return current, peak

    def __str__(self) -> str:
        return f"TorchDevice(name={self.name})"


class TorchDisk:
    """The folder for what is neither on the GPU nor in CPU memory."""

    device_type = DeviceType.DISK

    def __init__(self, path: str):
        self.name = path
        self.path = str(Path(path).expanduser().absolute())
        self.models: WeakSet[Closable] = WeakSet()  # those that may keep something here

    def close_copy_threads(self) -> None:
        """Close the models that use this disk."""
        for model in self.models:
            model.close()


class TorchMixedDevice:
    """Several places together."""

    name = "mixed"
    device_type = DeviceType.MIXED

    def __init__(self, base_devices: Sequence[TorchDevice | TorchDisk]):
        self.base_devices = base_devices
