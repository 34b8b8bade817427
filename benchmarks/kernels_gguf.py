"""Time products with every GGUF type beside int8 and int4 on a CUDA device: `python -m benchmarks.kernels_gguf`.

Products run in a CUDA graph over copies of a weight that exceed the L2 cache; GB/s counts the weight's bytes. With
`--tilings`, the fastest tilings of the kernel for one token: warps, chunks in flight, chunks of a warp, blocks per
multiprocessor.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import torch

from benchmarks.kernels_products import BYTES, draw, seconds
from genwright.kernels.cuda.planes_linear import Tiling, planes_product
from genwright.kernels.triton.bit_planes import unpack_planes
from genwright.quant.bit_planes import BitPlanes
from genwright.quant.ggml import TYPES, repack
from genwright.quant.packed import Weight, tensors_of
from genwright.text.ops.triton_ops import TritonOps

W = TypeVar("W", bound=Weight)
KINDS = {block.name: number for number, block in TYPES.items() if block.stored is None}
NAMES = ["bf16", "int8", "int4", "int4:asym", *KINDS]
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (17920, 1536), (1536, 8960)]
TOKENS = [1, 2, 4, 8, 16, 64]


def weights(name: str, outputs: int, inputs: int) -> list[Weight]:
    if name not in KINDS:
        return draw(name, outputs, inputs)
    block = TYPES[KINDS[name]]
    raw = torch.randint(0, 256, (outputs, inputs // block.elements * block.bytes), dtype=torch.uint8, device="cuda")
    first = repack(raw, KINDS[name])
    size = sum(tensor.nbytes for tensor in tensors_of(first))
    return [first, *(first.map(torch.clone) for _ in range(max(1, BYTES // size)))]


def rate(copies: Sequence[W], step: Callable[[W], object]) -> float:
    """GB/s."""
    size = sum(tensor.nbytes for weight in copies for tensor in tensors_of(weight))
    return size / seconds(lambda: [step(weight) for weight in copies]) / 1e9


def time_type(name: str, outputs: int, inputs: int) -> str:
    ops, copies, rates = TritonOps(torch.device("cuda")), weights(name, outputs, inputs), []
    for tokens in TOKENS:
        x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
        rates.append(f"{rate(copies, partial(ops.product, x)):6.0f}")
    if planes := [weight for weight in copies if isinstance(weight, BitPlanes)]:
        rates.append(f"{rate(planes, lambda weight: unpack_planes(weight, torch.bfloat16)):6.0f}")
    size = sum(tensor.nbytes for tensor in tensors_of(copies[0])) * 8 / outputs / inputs
    return f"{name:<9} {size:6.3f} bits {outputs:>5} x {inputs:<5} {' '.join(rates)}"


def time_tilings(name: str, outputs: int, inputs: int) -> str:
    copies, slices, found = weights(name, outputs, inputs), -(-inputs // 128), []
    x = torch.randn(1, inputs, device="cuda", dtype=torch.bfloat16)
    for warps, depth, blocks in product((4, 8, 12, 16), (1, 2, 4), (1, 2, 3, 4)):
        turns = -(-slices // (warps * depth)) * depth
        if warps * blocks > 32 or depth > turns or warps * (turns - depth) >= slices:
            continue
        tiles = Tiling(warps, depth, turns, blocks)

        found.append((rate(copies, partial(planes_product, x, tiles=tiles)), tuple(tiles)))
    best = sorted(found, reverse=True)[:5]
    return f"{name:<9} {outputs:>5} x {inputs:<5} " + "  ".join(f"{speed:5.0f} {tiles}" for speed, tiles in best)


def main() -> None:
    if not torch.cuda.is_available():
        print("No CUDA device was found; these kernels run on a GPU only.")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="*", default=NAMES)
    parser.add_argument("--tilings", action="store_true")
    options = parser.parse_args()
    print(torch.cuda.get_device_name())
    if not options.tilings:
        print(f"GB/s with tokens {' '.join(f'{tokens:6}' for tokens in TOKENS)} unpack".rjust(82))
    for shape, name in product(SHAPES, options.types):
        print(time_tilings(name, *shape) if options.tilings else time_type(name, *shape), flush=True)


if __name__ == "__main__":
    main()
