"""Machine: the rates of a machine's processors, memories and disk, measured once and kept."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from genwright.home import cache_folder, keep
from genwright.placement.host_memory import HostMemory
from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.rates import attention_rate, call_seconds, copy_rate, matmul_rate, read_rate

ROWS = {"cpu": (1, 8, 64, 512), "cuda": (1, 8, 64, 512, 4096)}  # of the products measured
SIDE = {"cpu": 3072, "cuda": 8192}  # of their matrices, which no cache of the processor holds
COPY = {"cpu": 1 << 26, "cuda": 1 << 28}  # bytes of a copy
FILE = 1 << 29  # bytes written to a disk and read again, or an eighth of its free space

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Rates:
    """Bytes and operations per second of what computes, of the CPU, and of the bus between them.

    Without a GPU the CPU is what computes, and the bus is its memory.
    """

    device: str
    to_device: float  # bytes per second, from pinned CPU memory
    to_device_pageable: float
    to_host: float
    device_read: float
    host_read: float
    device_matmul: Mapping[int, float]  # operations per second of a product with this many rows
    host_matmul: Mapping[int, float]
    host_attention: float  # bytes of cache per second
    call: float  # seconds of an operation that computes next to nothing


@dataclass(frozen=True)
class Disk:
    """Bytes per second of the file system of an offload folder, past the page cache."""

    read: float
    write: float


@dataclass(frozen=True)
class Machine:
    """The rates of a machine."""

    rates: Rates
    disk: Disk

    @property
    def has_gpu(self) -> bool:
        return self.rates.device != "cpu"

    @property
    def kind(self) -> str:
        """The type of the device that computes."""
        return "cuda" if self.has_gpu else "cpu"


def rate_at(rates: Mapping[int, float], rows: float) -> float:
    """The rate of a product with any number of rows, between those measured."""
    measured = sorted(rates.items())
    logs = np.log([[rows, rate] for rows, rate in measured])
    return float(np.exp(np.interp(np.log(max(rows, 1)), logs[:, 0], logs[:, 1])))


def this_machine(
    device: torch.device, dtype: torch.dtype, folder: Path | None, tell: Tell = lambda sentence: None
) -> Machine:
    """The rates of this machine for products in `dtype`, and of the disk of an offload folder."""
    path = cache_folder() / "machines" / f"{_key(device, dtype)}.json"
    kept = _read(path)
    if kept is None:
        tell(f"Measuring {_name(device)}; this is done once.")
        kept = {"rates": asdict(measure_rates(device, dtype)), "disks": {}}
        keep(path, json.dumps(kept, indent=1).encode())
    parent = folder or cache_folder() / "offload"
    mount = _mount_point(parent)
    if mount not in kept["disks"]:
        tell(f"Measuring the disk of {parent}; this is done once.")
        kept["disks"][mount] = asdict(measure_disk(parent))
        keep(path, json.dumps(kept, indent=1).encode())
    return Machine(_rates(kept["rates"]), Disk(**kept["disks"][mount]))


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Measure what computes, the CPU and the bus."""
    host, kind = torch.device("cpu"), device.type
    pinned = kind == "cuda"  # without a GPU no memory can be pinned

    def products(where: torch.device, dtype: torch.dtype) -> dict[int, float]:
        return {rows: matmul_rate(where, dtype, rows, SIDE[where.type]) for rows in ROWS[where.type]}

    if kind == "cuda":
        torch.cuda.set_device(device)  # whose streams the clock is in
    host_matmul = products(host, dtype if kind == "cpu" else torch.float32)
    host_read = read_rate(host)
    found = Rates(
        _name(device),
        copy_rate(COPY[kind], host, device, pinned),
        copy_rate(COPY[kind], host, device, False),
        copy_rate(COPY[kind], device, host, pinned),
        read_rate(device) if kind == "cuda" else host_read,
        host_read,
        products(device, dtype) if kind == "cuda" else host_matmul,
        host_matmul,
        attention_rate(dtype),
        call_seconds(device),
    )
    if kind == "cuda":  # leave the memory as it was found
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return found


def measure_disk(parent: Path) -> Disk:
    """Write a file and read it again as a placed model does: by several threads, past the page cache, in huge pages."""
    folder = OffloadFolder(parent, 0)
    try:
        found = os.statvfs(folder.path)
        buffer = HostMemory(pin=False).empty(min(FILE, found.f_bavail * found.f_frsize // 8))
        file = folder.create("rates", buffer.nbytes)
        buffer.fill_(1)
        times = []
        for transfer in (file.write_from, file.read_into):
            started = perf_counter()
            transfer(buffer).result()
            times.append(perf_counter() - started)
    finally:
        folder.close()
    return Disk(read=buffer.nbytes / times[1], write=buffer.nbytes / times[0])


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _key(device: torch.device, dtype: torch.dtype) -> str:
    """One name for each machine, device and type of numbers."""
    facts = (platform.node(), platform.machine(), os.cpu_count(), _name(device), str(dtype), torch.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any] | None:
    """What was kept; None if there is nothing, or not what this version writes."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        _rates(kept["rates"])
        {mount: Disk(**disk) for mount, disk in kept["disks"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(kept)


def _rates(kept: Mapping[str, Any]) -> Rates:
    """Rates from JSON, where the keys of a table are text."""
    values: dict[str, Any] = {each.name: kept[each.name] for each in fields(Rates)}
    for table in ("device_matmul", "host_matmul"):
        values[table] = {int(rows): rate for rows, rate in kept[table].items()}
    return Rates(**values)


def _mount_point(folder: Path) -> str:
    """Where the file system of a folder is mounted; the folder need not exist yet."""
    path = folder.resolve()
    while not os.path.ismount(path):
        path = path.parent
    return str(path)
