"""Time products with weights of every format on a CPU: `python -m benchmarks.kernels_cpu`, alone on the machine.

Shapes are those of a 1.1 B Llama. Each product runs over copies of a weight that together exceed the caches. GB/s
counts the bytes of the packed weight; the percentage is of the memory bandwidth, which is measured first.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch

from genwright.kernels.cpu.fused_linear import few_tokens_linear
from genwright.placement.rates import read_rate
from genwright.quant.formats import parse_format
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed, Weight, tensors_of

SHAPES = {"qkv": (2560, 2048), "gate_up": (11264, 2048), "down": (2048, 5632)}
FORMATS = ("float32", "bfloat16", "int8", "int8:g32", "int4", "int4:g32:asym", "fp8", "fp8:channel")
PLAIN = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BYTES = 192 << 20  # of all copies: several times the cache


def seconds(steps: list[Callable[[], object]], least: float = 0.3) -> float:
    """The median time of a step; the steps run in turn for at least `least` seconds."""
    times: list[float] = []
    for step in cycle(steps):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
        if len(times) > len(steps) and sum(times) > least:
            return statistics.median(times[1:])
    raise AssertionError


def copies(name: str, outputs: int, inputs: int) -> list[Weight]:
    wide = torch.randn(outputs, inputs) * 0.02
    first: Weight = wide.to(PLAIN[name]) if name in PLAIN else parse_format(name).quantize(wide)
    count = BYTES // size(first)
    return [first, *(first.map(torch.clone) if isinstance(first, Packed) else first.clone() for _ in range(count))]


def size(weight: Weight) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(weight))


def of_torch(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """torch's own int8 product, in bf16."""
    assert isinstance(weight, Int8)
    return torch._weight_int8pack_mm(x.bfloat16(), weight.values, weight.scales[:, 0].bfloat16())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 2, 4, 6, 8, 16, 48, 256])
    options = parser.parse_args()
    limit = read_rate(torch.device("cpu"))
    print(f"{torch.get_num_threads()} threads; GB/s of weights, and share of {limit / 1e9:.1f}; then milliseconds")
    print(f"{'':24}" + "".join(f"{count:>14} tok" for count in options.tokens))
    for label in options.shapes:
        for name in options.formats:
            weights = copies(name, *SHAPES[label])
            ways = {name: few_tokens_linear} | ({"torch's int8": of_torch} if name == "int8" else {})
            for way, function in ways.items():
                cells = []
                for count in options.tokens:
                    x = torch.randn(count, SHAPES[label][1], dtype=PLAIN.get(name))
                    time_of = seconds([partial(function, x, weight) for weight in weights])
                    rate = size(weights[0]) / time_of
                    cells.append(f"{rate / 1e9:5.1f} {rate / limit:4.0%} {time_of * 1e3:6.1f}")
                print(f"{label:8} {way:15}" + " ".join(cells), flush=True)


if __name__ == "__main__":
    main()
