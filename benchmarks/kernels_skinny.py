"""Time products of 2 to 64 tokens on a CUDA device: `python -m benchmarks.kernels_skinny`.

The four products of Llama-3.1-8B's layers, with the gate and without norms, run in a CUDA graph over more weights than
the L2 cache holds: alone, and as a chain. Figures are microseconds per layer, and GB/s, which count the packed weight
with its scales in every line. bf16 is cuBLAS, triton is `triton/matmul`, mma is `mma.cu` (up to 8 tokens, Triton where
x is too large), packed is `packed_skinny.cu` (up to 16 tokens), wgmma is `packed_wgmma.cu` with 64 or 128 rows a team;
a tiling of the skinny GEMM (bf16 up to 32 tokens, packed up to 16) is printed as threads, m tiles, columns, stages and
blocks. The kernels of these three are compiled in parallel first.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product as pairs

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.kernels_products import draw, seconds
from genwright.kernels.cuda.fused_linear import MAX_TOKENS, operand, product
from genwright.kernels.cuda.nvrtc import shared_memory
from genwright.kernels.cuda.packed_linear import MAX_PACKED_TOKENS, PackedTiling, packed_linear, packed_tiling
from genwright.kernels.cuda.packed_linear import new_scratch as packed_scratch
from genwright.kernels.cuda.skinny_linear import (
    MAX_SKINNY_TOKENS,
    SkinnyTiling,
    new_scratch,
    shared_bytes,
    skinny_linear,
)
from genwright.kernels.cuda.tilings import tiling
from genwright.kernels.cuda.wgmma_linear import TEAM_ROWS, wgmma_linear
from genwright.kernels.cuda.wgmma_linear import new_scratch as wgmma_scratch
from genwright.kernels.triton.elementwise import silu_mul
from genwright.kernels.triton.matmul import packed_matmul
from genwright.quant.packed import Weight, tensors_of

PRODUCTS = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
CANDIDATES = [
    SkinnyTiling(threads, m_tiles, k_tile, stages, blocks)
    for threads, m_tiles, blocks in ((128, 1, 2), (128, 2, 1), (256, 1, 1), (256, 2, 1), (512, 1, 1))
    for k_tile, stages in pairs((128, 256, 512), (2, 3, 4, 6))
]
Method = Callable[[str, Tensor, Weight], Tensor]  # of a product's name, x and its weight


def bf16(name: str, x: Tensor, weight: Weight) -> Tensor:
    assert isinstance(weight, Tensor)
    y = linear(x, weight)
    return silu_mul(y, pdl=True) if name == "gate_up" else y


def triton(name: str, x: Tensor, weight: Weight) -> Tensor:
    y = packed_matmul(x, weight)
    return silu_mul(y, pdl=True) if name == "gate_up" else y


def mma(name: str, x: Tensor, weight: Weight) -> Tensor:
    known = operand(weight)
    assert known is not None
    tiles = tiling(known, x, name == "gate_up")
    return triton(name, x, weight) if tiles is None else product(x, known, tiles, gate=name == "gate_up")


def packed(scratches: dict[PackedTiling, Tensor], name: str, x: Tensor, weight: Weight) -> Tensor:
    known = operand(weight)
    assert known is not None
    tiles = packed_tiling(known, x)
    assert tiles is not None
    if tiles not in scratches:
        scratches[tiles] = packed_scratch(tiles, x.device)
    return packed_linear(x, known, tiles, scratches[tiles], gate=name == "gate_up")


def skinny(tiles: SkinnyTiling, scratch: Tensor, name: str, x: Tensor, weight: Weight) -> Tensor:
    known = operand(weight)
    assert known is not None
    return skinny_linear(x, known, tiles, scratch, gate=name == "gate_up")


def wgmma(team_rows: int, scratch: Tensor, name: str, x: Tensor, weight: Weight) -> Tensor:
    known = operand(weight)
    assert known is not None
    return wgmma_linear(x, known, scratch, team_rows=team_rows, gate=name == "gate_up")


def time_methods(
    weights: dict[str, list[Weight]], tokens: int, methods: dict[str, Method]
) -> dict[str, dict[str, float]]:
    """Microseconds of each product and of the chain, by method."""
    inputs = {
        name: torch.randn(tokens, shape[1], device="cuda", dtype=torch.bfloat16) for name, shape in PRODUCTS.items()
    }
    layers = min(len(each) for each in weights.values())

    def chain(method: Method) -> None:
        for layer in range(layers):
            for name, x in inputs.items():
                method(name, x, weights[name][layer])

    def alone(method: Method, name: str) -> None:
        for weight in weights[name]:
            method(name, inputs[name], weight)

    times = {}
    for label, method in methods.items():
        times[label] = {name: seconds(partial(alone, method, name)) / len(weights[name]) * 1e6 for name in PRODUCTS} | {
            "chain": seconds(partial(chain, method)) / layers * 1e6
        }
    return times


def fitting(weight: Weight, tokens: int, candidates: Sequence[SkinnyTiling]) -> list[SkinnyTiling]:
    """The candidates that the GPU can launch."""
    known = operand(weight)
    assert known is not None
    room = shared_memory(torch.cuda.current_device())
    return [each for each in candidates if shared_bytes(known, tokens, each) <= room // each.blocks - 1024]


def compile_all(weights: dict[str, list[Weight]], tokens: int, methods: Sequence[Method]) -> None:
    def once(name: str, method: Method) -> None:
        method(name, torch.zeros(tokens, PRODUCTS[name][1], device="cuda", dtype=torch.bfloat16), weights[name][0])

    with ThreadPoolExecutor(16, initializer=torch.cuda.synchronize) as pool:
        list(pool.map(once, *zip(*pairs(PRODUCTS, methods), strict=True)))
    torch.cuda.synchronize()


def report(times: dict[str, dict[str, float]], sizes: dict[str, int], shown: int) -> None:
    order = sorted(times, key=lambda label: (label.startswith("skinny "), times[label]["chain"]))
    fixed = sum(not label.startswith("skinny ") for label in order)
    best = {name: min(times, key=lambda label: times[label][name]) for name in sizes}
    for label in order[: fixed + shown]:
        cells = [f"{times[label][name]:7.1f} {sizes[name] / times[label][name] / 1e3:5.0f}" for name in sizes]
        print(f"  {label:<24} " + "  ".join(cells), flush=True)
    print("  best alone: " + ", ".join(f"{name} {label}" for name, label in best.items()), flush=True)


def main() -> None:
    if not torch.cuda.is_available():
        print("No CUDA device was found; these kernels run on a GPU only.")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="*", default=["bf16", "int4", "int8"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--shown", type=int, default=6, help="The fastest tilings that are printed.")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    print(torch.cuda.get_device_name())
    plain = {name: draw("bf16", *shape) for name, shape in PRODUCTS.items()}
    for form in options.formats:
        weights = {name: draw(form, *shape) for name, shape in PRODUCTS.items()}
        sizes = {name: sum(tensor.nbytes for tensor in tensors_of(each[0])) for name, each in weights.items()}
        sizes["chain"] = sum(sizes.values())
        for tokens in options.tokens:
            methods: dict[str, Method] = {"triton": triton}
            if tokens <= MAX_TOKENS:
                methods["mma"] = mma
            if tokens <= MAX_PACKED_TOKENS and form != "bf16":
                methods["packed"] = partial(packed, {})
            if form != "bf16":
                scratch = wgmma_scratch(device)
                for rows in TEAM_ROWS:
                    methods[f"wgmma {rows}"] = partial(wgmma, rows, scratch)
            if tokens <= (MAX_SKINNY_TOKENS if form == "bf16" else MAX_PACKED_TOKENS):
                scratch = new_scratch(tokens, device)
                for each in fitting(weights["qkv"][0], tokens, CANDIDATES):
                    label = " ".join(str(value) for value in vars(each).values())
                    methods[f"skinny {label}"] = partial(skinny, each, scratch)
            ours = [method for label, method in methods.items() if label.startswith(("packed", "wgmma", "skinny"))]
            compile_all(weights, tokens, ours)
            times = time_methods(plain, tokens, {"bf16": bf16}) | time_methods(weights, tokens, methods)
            print(f"{form}, {tokens} tokens: us and GB/s of " + ", ".join(sizes))
            report(times, sizes, options.shown)


if __name__ == "__main__":
    main()
