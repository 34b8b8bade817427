"""Rates of a device, measured: bytes read or copied and operations per second."""

import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from genwright.kernels import PAGE
from genwright.kernels.cpu.amx import without_broken_amx
from genwright.kernels.cpu.attention import paged_attention
from genwright.kernels.cpu.fused_linear import few_tokens_linear
from genwright.kernels.cpu.huge_pages import Arena

ROUNDS = 5
BUFFER = {"cpu": 1 << 30, "cuda": 4 << 30}  # bytes, much larger than the caches
SIDE = {"cpu": 1536, "cuda": 8192}  # of the matrices multiplied
CALLS = 100  # of a small operation
ATTENTION = (8, 8, 16, 128)  # sequences, pages of each, heads and their size


@torch.inference_mode()
def read_rate(device: torch.device) -> float:
    """Bytes per second of the fastest pass over a large buffer: sum, dot product, matrix times vector, or copy."""
    size = BUFFER[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 2)
    shape = (size // 4,)
    values = torch.ones(shape, device=device) if device.type == "cuda" else Arena().empty(shape, torch.float32).fill_(1)
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
def matmul_rate(device: torch.device, dtype: torch.dtype, rows: int | None = None, side: int | None = None) -> float:
    """Operations per second of [rows, side] times [side, side], as a model computes it; `rows` is `side` by default."""
    side = side or SIDE[device.type]
    rows = rows or side
    a, b = (torch.randn(count, side, device=device).to(dtype) for count in (rows, side))
    with without_broken_amx():
        return 2 * rows * side**2 / fastest(lambda: few_tokens_linear(a, b), device)


@torch.inference_mode()
def copy_rate(size: int, source: torch.device, target: torch.device, pinned: bool) -> float:
    """Bytes per second of a copy from one device to another; `pinned` is about the CPU's side."""
    tensors = []
    for device in (source, target):
        pin = pinned and device.type == "cpu"
        tensors.append(torch.ones(size, dtype=torch.uint8, device=device, pin_memory=pin))
    where = target if target.type == "cuda" else source
    return size / fastest(lambda: tensors[1].copy_(tensors[0], non_blocking=pinned), where)


@torch.inference_mode()
def attention_rate(dtype: torch.dtype) -> float:
    """Bytes of cache per second that the CPU attends to, with one query of each sequence."""
    sequences, pages, heads, size = ATTENTION
    k, v = (torch.randn(sequences * pages, PAGE, heads, size).to(dtype) for _ in range(2))
    q = torch.randn(sequences, heads, size).to(dtype)
    table = torch.arange(sequences * pages).view(sequences, pages)
    lengths = torch.full((sequences,), pages * PAGE)

    def attend() -> None:
        if paged_attention(q, k, v, table, lengths, 1.0, None) is None:  # there is no kernel for the dtype
            keys, values = (x.index_select(0, table.view(-1)).view(sequences, -1, heads, size) for x in (k, v))
            scaled_dot_product_attention(q[:, :, None], keys.transpose(1, 2), values.transpose(1, 2))

    with without_broken_amx():
        return (k.nbytes + v.nbytes) / fastest(attend, torch.device("cpu"))


@torch.inference_mode()
def call_seconds(device: torch.device) -> float:
    """Seconds that an operation takes which has next to nothing to compute."""
    x = torch.ones(8, device=device)

    def calls() -> None:
        for _ in range(CALLS):
            x.add_(1)

    return fastest(calls, device) / CALLS


def fastest(run: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """Seconds of the fastest round, after one to warm up, because disturbances only slow a measurement."""
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
