"""Time the attention kernels on a GPU: GB/s of decoding, TFLOP/s of prompts; those in Triton for several tiles.

A figure is the time of one launch in a CUDA graph of many layers, each with its own cache. Every case prints its best
candidates and the default; `pdl` is programmatic dependent launch.
"""

import itertools
import random
import statistics
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from genwright.kernels import PAGE

DTYPE, HEAD_DIM = torch.bfloat16, 128
SHOWN = 4  # candidates per case


def main() -> None:
    if not torch.cuda.is_available():
        print("No CUDA device was found; these kernels run on a GPU only.")
        return
    print(f"{torch.cuda.get_device_name()}, head_dim {HEAD_DIM}, {DTYPE}")
    print("| case | keys | warps | stages | programs | pdl | us | rate |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rope_decode("206, batch 1, 32 kv heads", [206], 32)
    for length, batch in itertools.product((544, 4096), (1, 8, 64, 256)):
        rope_decode(f"{length:,}, batch {batch}, 8 kv heads", [length] * batch, 8)
    draw_length = random.Random(0).randint
    rope_decode("16 to 4,096, batch 64, 8 kv heads", [draw_length(16, 4096) for _ in range(64)], 8)
    rope_decode("128 and one of 8,192, batch 64, 8 kv heads", [128] * 40 + [8192] + [128] * 23, 8)
    decode("decode 206, batch 1, 32 kv heads", 206, 1, 32, 32)
    decode("decode 8,192, batch 1, 8 kv heads", 8192, 1, 32, 8)
    decode("decode 512, batch 64, 8 kv heads", 512, 64, 32, 8)
    prefill("prefill 2,048, 32 kv heads", 2048, 32, 32)
    prefill("prefill 2,048, 8 kv heads", 2048, 32, 8)


def rope_decode(case: str, sequences: list[int], kv_heads: int, heads: int = 32) -> None:
    """The CUDA kernel, with RoPE and the write to the cache."""
    from genwright.kernels.cuda.decode_attention import Scratch, rope_attend

    moved = 2 * sum(sequences) * kv_heads * HEAD_DIM * DTYPE.itemsize
    caches, table, _ = draw(max(sequences), len(sequences), kv_heads, layers=max(2, min(32, 1_200_000_000 // moved)))
    lengths = torch.tensor(sequences, device="cuda")
    positions = lengths - 1
    slots = table.gather(1, positions[:, None] // PAGE)[:, 0] * PAGE + positions % PAGE
    qkv = torch.randn(len(sequences), (heads + 2 * kv_heads) * HEAD_DIM, dtype=DTYPE, device="cuda")
    angles = torch.rand(max(sequences), 1, HEAD_DIM // 2, device="cuda")
    scratch = Scratch.allocate(heads // kv_heads, HEAD_DIM, qkv.device)

    places = ((angles.cos(), angles.sin()), positions, slots, lengths, table)

    def layers() -> None:
        for k, v in caches:
            rope_attend(qkv, *places, k, v, None, 0.0, heads, 0.1, None, scratch)

    s = seconds(layers) / len(caches)
    print(f"| decode with RoPE {case} | | | | | yes | {s * 1e6:.1f} | {moved / s / 1e9:,.0f} GB/s |", flush=True)


def decode(case: str, length: int, batch: int, heads: int, kv_heads: int) -> None:
    from genwright.kernels.triton.decode_attention import PROGRAMS, DecodeScratch, decode_attention, decode_tile
    from genwright.kernels.triton.prefill_attention import Tile

    moved = 2 * batch * length * kv_heads * HEAD_DIM * DTYPE.itemsize
    caches, table, lengths = draw(length, batch, kv_heads, layers=max(4, min(64, 400_000_000 // moved)))
    q = torch.randn(batch, heads, HEAD_DIM, dtype=DTYPE, device="cuda")
    scratch = DecodeScratch.allocate(heads // kv_heads, HEAD_DIM, q.device)

    def timed(tile: Tile, programs: int, pdl: bool) -> float:
        def layers() -> None:
            for k, v in caches:
                decode_attention(q, k, v, table, lengths, 1, 0.1, None, scratch, tile=tile, programs=programs, pdl=pdl)

        return seconds(layers) / len(caches)

    default = decode_tile(HEAD_DIM, DTYPE)
    tiles = {default} | {
        Tile(1, keys, warps, stages)
        for keys, warps, stages in itertools.product((32, 64), (2, 4, 8), (2, 3, 4))
        if (keys, warps) not in ((32, 8), (64, 2))
    }
    times = {
        (tile, n, False): timed(tile, n, False) for tile in tiles for n in (PROGRAMS // 4, PROGRAMS // 2, PROGRAMS)
    }
    best = min(times, key=times.__getitem__)
    times[*best[:2], True] = timed(*best[:2], True)
    report(case, times, [(default, PROGRAMS, False), (*best[:2], True)], lambda s: f"{moved / s / 1e9:,.0f} GB/s")


def prefill(case: str, length: int, heads: int, kv_heads: int) -> None:
    from genwright.kernels.triton.prefill_attention import Tile, prefill_attention, prefill_tile

    flops = 2 * length * length * heads * HEAD_DIM  # half of all pairs, two products, two operations each
    caches, table, lengths = draw(length, 1, kv_heads, layers=8)
    q = torch.randn(length, heads, HEAD_DIM, dtype=DTYPE, device="cuda")
    offsets = torch.tensor([0, length], device="cuda")

    def timed(tile: Tile) -> float:
        def layers() -> None:
            for k, v in caches:
                prefill_attention(q, k, v, table, lengths, offsets, length, 0.1, None, tile=tile)

        return seconds(layers) / len(caches)

    default = prefill_tile(HEAD_DIM, DTYPE)
    tiles = {default} | {
        Tile(queries, 64, warps, stages) for queries, warps in ((64, 4), (128, 8), (128, 4)) for stages in (2, 3, 4)
    }
    rate = lambda s: f"{flops / s / 1e12:,.0f} TFLOP/s"  # noqa: E731
    report(case, {(tile, 0, False): timed(tile) for tile in tiles}, [(default, 0, False)], rate)
    q, k, v = (
        x.transpose(0, 1)[None].contiguous() for x in torch.randn(3, length, heads, HEAD_DIM, device="cuda").to(DTYPE)
    )
    s = seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    print(f"| {case}, PyTorch without pages | | | | | | {s * 1e6:.1f} | {rate(s)} |")


def draw(length: int, batch: int, kv_heads: int, layers: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """A cache per layer with its pages in random order; together they exceed the L2 cache."""
    width = -(-length // PAGE)
    table = torch.randperm(batch * width, device="cuda").view(batch, width)
    shape = (2, batch * width, PAGE, kv_heads, HEAD_DIM)
    caches = [tuple(torch.randn(shape, dtype=DTYPE, device="cuda")) for _ in range(layers)]
    return caches, table, torch.full((batch,), length, device="cuda")


def seconds(run: Callable[[], object], repeats: int = 11) -> float:
    """The median time of one CUDA graph replay."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def report(case: str, times: dict, always: Iterable, rate: Callable[[float], str]) -> None:
    best = sorted(times, key=times.__getitem__)[:SHOWN]
    for key in [*best, *(key for key in always if key not in best)]:
        tile, programs, pdl = key
        keys = f"{tile.keys} x {tile.queries}" if tile.queries > 1 else tile.keys
        columns = (case, keys, tile.warps, tile.stages, programs or "", "yes" if pdl else "", f"{times[key] * 1e6:.1f}")
        print(f"| {' | '.join(map(str, columns))} | {rate(times[key])} |", flush=True)


if __name__ == "__main__":
    main()
