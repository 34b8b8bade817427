"""Time DeepSeek's kernels on a CUDA device for several tiles: `python -m benchmarks.kernels_deepseek`.

A figure is the time of one layer in a CUDA graph of several, whose weights or caches exceed the L2 cache together; GB/s
counts the bytes of the cache, or of the experts that are chosen.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.kernels_products import seconds
from genwright.kernels import PAGE
from genwright.kernels.cuda.fused_linear import operand, product
from genwright.kernels.cuda.tilings import tiling
from genwright.kernels.triton.fp8_experts import grouped_fp8_matmul
from genwright.kernels.triton.grouped_matmul import GroupedTiles, group_pairs, grouped_matmul, pick_tiles
from genwright.kernels.triton.latent_attention import LatentScratch, LatentTile, attend, latent_tile
from genwright.kernels.triton.latent_queries import LatentShape, absorb
from genwright.quant.formats import parse_format
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.packed import Weight, tensors_of

BYTES = 1 << 28  # of all layers in a graph: several times the L2 cache
LATENT_TILES = [
    LatentTile(16, 32, 4, 2), LatentTile(16, 32, 4, 3), LatentTile(16, 64, 4, 2), LatentTile(16, 64, 8, 3),
    LatentTile(32, 32, 8, 2), LatentTile(64, 32, 8, 2), LatentTile(64, 32, 4, 2), LatentTile(64, 64, 8, 1),
]  # fmt: skip
GROUPED_TILES = [
    GroupedTiles(16, 32, 128, 4, 4), GroupedTiles(16, 32, 256, 3, 4), GroupedTiles(16, 64, 64, 5, 4),
    GroupedTiles(16, 64, 128, 4, 4), GroupedTiles(16, 64, 256, 3, 4), GroupedTiles(16, 128, 64, 4, 4),
    GroupedTiles(32, 64, 128, 3, 4), GroupedTiles(64, 64, 64, 4, 4), GroupedTiles(64, 128, 64, 4, 4),
    GroupedTiles(64, 128, 64, 4, 8), GroupedTiles(128, 128, 64, 3, 8),
]  # fmt: skip
EXPERTS = {  # experts, experts per token, FFN dim, dim, format
    "V2-Lite bf16": (64, 6, 1408, 2048, None),
    "V3 fp8": (64, 2, 2048, 7168, "fp8"),  # a quarter of the experts and of the choices
    "Mixtral int8": (8, 2, 14336, 4096, "int8"),
}


def time_latent(heads: int, batch: int, length: int) -> None:
    shape, width = LatentShape(heads, 128, 64, 128, 512, True), -(-length // PAGE)
    moved = batch * length * 576 * 2
    layers = max(2, min(32, BYTES // moved))
    caches = [torch.randn(batch * width, PAGE, 576, device="cuda").bfloat16() for _ in range(layers)]
    table = torch.randperm(batch * width, device="cuda").view(batch, width)
    lengths = torch.full((batch,), length, device="cuda")
    positions = lengths - 1
    slots = table[:, -1] * PAGE + positions % PAGE
    rows = torch.randn(batch, heads * 192 + 576, device="cuda").bfloat16()
    q, kv = rows.split((heads * 192, 576), dim=1)
    kv_b = [torch.randn(heads * 256, 512, device="cuda").bfloat16() for _ in range(layers)]
    norm, tables = torch.ones(512, device="cuda").bfloat16(), tuple(torch.rand(2, length, 1, 32, device="cuda"))
    scratch = LatentScratch.allocate(heads, 512, q.device)

    def absorbed() -> list[torch.Tensor]:
        return [
            absorb(q, kv, norm, weight, tables, positions, slots, cache, 1e-6, shape, pdl=True)
            for cache, weight in zip(caches, kv_b, strict=True)
        ]

    queries = absorbed()[0]
    print(f"latent, {heads} heads, batch {batch}, length {length:,}: absorb {seconds(absorbed) / layers * 1e6:.1f} us")
    default = latent_tile(heads, q.dtype)
    for tile in dict.fromkeys([default, *LATENT_TILES]):
        if tile.rows > max(16, heads):
            continue

        def attended(tile: LatentTile = tile) -> None:
            for cache, weight in zip(caches, kv_b, strict=True):
                attend(queries, cache, weight, table, lengths, 0.1, scratch, shape, tile, pdl=True)

        show(attended, layers, moved, tile)


def time_experts(name: str, tokens: int) -> None:
    experts, top_k, ffn, dim, quant = EXPERTS[name]
    logits = torch.rand(tokens, experts, device="cuda")
    ids = logits.topk(top_k).indices
    groups, chosen = group_pairs(ids, experts), len(ids.unique())
    print(f"{name}, {tokens} tokens: group_pairs {seconds(lambda: group_pairs(ids, experts)) * 1e6:.1f} us")
    for gate, outputs, columns in ((True, 2 * ffn, dim), (False, dim, ffn)):
        weight = stack(experts, outputs, columns, quant)
        moved = sum(tensor.nbytes for tensor in tensors_of(weight)) * chosen / experts
        x = torch.randn(tokens if gate else tokens * top_k, columns, device="cuda").bfloat16()
        print(f"  {'gate and up' if gate else 'down'}, {chosen} experts chosen")
        share = -(-tokens * top_k // experts)
        default = pick_tiles(share, gate, x.dtype)
        for tiles in dict.fromkeys([default, *GROUPED_TILES]):
            show(partial(grouped_matmul, x, weight, groups, share, gate, tiles, pdl=True), 1, moved, tiles)
        if isinstance(weight, Fp8Blocks):
            for pairs, outputs, stages in itertools.product((16, 32, 64), (64, 128), (3, 4, 5)):
                tiles = GroupedTiles(pairs, outputs, 128, stages, 8 if pairs * outputs > 2048 else 4)
                show(
                    partial(grouped_fp8_matmul, x, weight, groups, share, gate, tiles, pdl=True),
                    1,
                    moved,
                    tiles,
                    "fp8 x",
                )
        matrix = operand(weight)
        tile = None if matrix is None or tokens > 8 else tiling(matrix, x[:1], gate, stack=True)
        if matrix is not None and tile is not None:
            each = ids if gate else ids.view(-1, 1)
            show(partial(product, x, matrix, tile, gate=gate, experts=each), 1, moved, "each pair on its own")


def stack(experts: int, outputs: int, columns: int, quant: str | None) -> Weight:
    if quant is None:
        return torch.randn(experts, outputs, columns, device="cuda", dtype=torch.bfloat16)
    one = parse_format(quant).quantize(torch.randn(outputs, columns, device="cuda"))
    return one.map(lambda tensor: tensor.repeat(experts, 1)).unflatten(0, (experts, -1))


def show(run: Callable[[], object], layers: int, moved: float, tile: Any, note: str = "") -> None:
    try:
        time = seconds(run) / layers
    except OutOfResources:
        return
    text = tile if isinstance(tile, str) else astuple(tile)
    print(f"    {text} {note}: {time * 1e6:.1f} us, {moved / time / 1e9:,.0f} GB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("latent", "experts"))
    only = parser.parse_args().only
    if only != "experts":
        for heads, batch, length in ((16, 1, 206), (16, 1, 8192), (16, 64, 206), (128, 1, 8192), (128, 64, 1024)):
            time_latent(heads, batch, length)
    if only != "latent":
        for name in EXPERTS:
            for tokens in (4, 8, 64, 256):
                time_experts(name, tokens)


if __name__ == "__main__":
    main()
