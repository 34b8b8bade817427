"""Time the sampling kernel and products with packed weights on a CUDA device: `python -m benchmarks.kernels_products`.

Products run in a CUDA graph over copies of a weight that exceed the L2 cache; GB/s counts the weight's bytes. Tiles
are printed as outputs x columns, stages, warps, and k if the warps split the columns.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear
from triton.runtime.errors import OutOfResources

from genwright.kernels.triton import sample as sampling
from genwright.kernels.triton.matmul import Tiles, packed_matmul
from genwright.kernels.triton.unpack import unpack
from genwright.quant.formats import parse_format
from genwright.quant.packed import Weight, tensors_of

PROMPTS = [(shape, rows) for shape in ((4096, 4096), (28672, 4096)) for rows in (256, 2048)]
PACKED = ["int4", "int4:g128", "int4:asym", "int8", "fp8"]
SHAPES = [(22016, 4096), (4096, 11008), (12288, 4096), (4096, 4096)]
CANDIDATES = {
    "bf16": [Tiles(16, 512, 4, 8, True), Tiles(32, 128, 5, 4), Tiles(64, 128, 4, 4)],
    "int8": [Tiles(16, 1024, 3, 8, True), Tiles(32, 512, 3, 4, True), Tiles(64, 256, 3, 4)],
    "int4": [Tiles(16, 1024, 3, 8, True), Tiles(16, 512, 6, 4, True), Tiles(32, 512, 4, 4, True), Tiles(64, 256, 4, 4)],
}
BYTES = 1 << 28  # of all weights in a graph: several times the L2 cache


def seconds(step: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of several replays of a step in a CUDA graph."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return min(times)


def time_sampling(vocab: int, rows: int, top_k: int, top_p: float, warps: int) -> float:
    sampling.WARPS = warps
    logits = torch.randn(rows, vocab, device="cuda")
    inverse, top_p_bits, log_min_p = torch.tensor((1 / 0.8, top_p, float("-inf"))).view(torch.int32).tolist()
    words = [[seed, 100, inverse, top_k or vocab, top_p_bits, log_min_p] for seed in range(rows)]
    settings = torch.tensor(words, dtype=torch.int32, device="cuda")

    def step() -> None:
        for _ in range(20):
            sampling.sample(logits, settings)

    return seconds(step) / 20


def draw(name: str, outputs: int, inputs: int) -> list[Weight]:
    wide = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02
    first: Weight = wide if name == "bf16" else parse_format(name).quantize(wide)
    size = sum(tensor.nbytes for tensor in tensors_of(first))
    copies = range(max(1, BYTES // size))
    return [first, *(first.clone() if isinstance(first, torch.Tensor) else first.map(torch.clone) for _ in copies)]


def time_prompt(name: str, outputs: int, inputs: int, rows: int) -> list[float]:
    """Seconds of a product of many rows: unpacked by the kernel, unpacked by `dequantize`, and with a bf16 weight."""
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    packed, plain = draw(name, outputs, inputs), draw("bf16", outputs, inputs)

    def each(product: Callable[[Any], torch.Tensor], weights: list[Weight]) -> float:
        return seconds(lambda: [product(weight) for weight in weights]) / len(weights)

    unpacked = each(lambda weight: linear(x, unpack(weight, x.dtype)), packed)
    return [unpacked, each(lambda weight: weight.linear(x), packed), each(lambda weight: linear(x, weight), plain)]


def _speed(x: torch.Tensor, weights: list[Weight], size: int, tiles: Tiles | None) -> str:
    try:
        return f"{size / seconds(lambda: [packed_matmul(x, weight, tiles=tiles) for weight in weights]) / 1e9:7.0f}"
    except OutOfResources:
        return "too large"


def _label(tiles: Tiles) -> str:
    return f"{tiles.outputs}x{tiles.columns} {tiles.stages}s {tiles.warps}w{'k' if tiles.split else ''}"


def main() -> None:
    if not torch.cuda.is_available():
        print("No CUDA device was found; these kernels run on a GPU only.")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="*", default=list(CANDIDATES))
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 4, 16, 64])
    options = parser.parse_args()
    print(torch.cuda.get_device_name())
    print("sampling, us                       warps 8     16     32")
    for vocab, rows in [(v, r) for v in (32_000, 128_256) for r in (1, 64)]:
        for top_k, top_p in ((200, 1.0), (0, 1.0), (0, 0.9), (50, 0.9)):
            times = [time_sampling(vocab, rows, top_k, top_p, warps) * 1e6 for warps in (8, 16, 32)]
            text = " ".join(f"{time:6.1f}" for time in times)
            print(f"{vocab:>7} x {rows:<3} top_k {top_k:<4} top_p {top_p:<4} {text}", flush=True)
    print("prompts, us                        unpack    linear      bf16")
    for ((outputs, inputs), rows), name in [(case, name) for case in PROMPTS for name in PACKED]:
        times = [time * 1e6 for time in time_prompt(name, outputs, inputs, rows)]
        print(
            f"{name:<9} {outputs:>5} x {inputs} x {rows:<4} " + " ".join(f"{time:9.1f}" for time in times), flush=True
        )
    for name in options.formats:
        for outputs, inputs in SHAPES:
            weights = draw(name, outputs, inputs)
            size = sum(tensor.nbytes for weight in weights for tensor in tensors_of(weight))
            print(f"{name} {outputs} x {inputs}, GB/s")
            print("            chosen " + " ".join(f"{_label(some):>14}" for some in CANDIDATES[name]))
            for rows in options.rows:
                x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
                speeds = [_speed(x, weights, size, some) for some in (None, *CANDIDATES[name])]
                print(f"  {rows:>3} rows  {speeds[0]} " + " ".join(f"{speed:>14}" for speed in speeds[1:]), flush=True)
            del weights


if __name__ == "__main__":
    main()
