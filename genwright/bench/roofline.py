"""The limits of a device, measured: bytes read from memory and operations per second."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from genwright.kernels.cpu.amx import without_broken_amx

ROUNDS = 5
BUFFER = {"cpu": 1 << 30, "cuda": 4 << 30}  # bytes, much larger than the caches
SIDE = {"cpu": 1536, "cuda": 8192}  # of the matrices multiplied


@dataclass(frozen=True)
class Roofline:
    """The two limits of a device."""

    read: float  # bytes per second, from memory
    matmul: float  # floating-point operations per second, in the measured data type


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Both limits; the best of several rounds and ways, because disturbances only slow a measurement."""
    return Roofline(read_rate(device), matmul_rate(device, dtype))


@torch.inference_mode()
def read_rate(device: torch.device) -> float:
    """Bytes per second of the fastest pass over a large buffer: sum, dot product, matrix times vector, or copy."""
    size = BUFFER[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 2)
    values = torch.ones(size // 4, device=device)
    half, matrix = values.view(2, -1), values.view(-1, 4096)
    vector = torch.ones(4096, device=device)
    ways: list[Callable[[], object]] = [
        values.sum,
        lambda: torch.dot(half[0], half[1]),
        lambda: torch.mv(matrix, vector),
        lambda: half[0].copy_(half[1]),
    ]
    return values.nbytes / min(fastest(way, device) for way in ways)


@torch.inference_mode()
def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product of square matrices."""
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    with without_broken_amx():
        return 2 * side**3 / fastest(lambda: a @ b, device)


def fastest(run: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """Seconds of the fastest round, after one to warm up."""
    return min([seconds(run, device) for _ in range(rounds + 1)][1:])


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that the device takes for a function."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
