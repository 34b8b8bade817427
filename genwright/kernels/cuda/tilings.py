"""Which tiling a product takes: a table measured on the H200 for Hopper GPUs; other GPUs are timed once per shape."""

import json
from functools import cache
from pathlib import Path

import torch

from genwright.home import keep, kernel_file
from genwright.kernels.compile_ahead import launching
from genwright.kernels.cuda import wgmma_linear
from genwright.kernels.cuda.fused_linear import FP8, INT4, INT8, PLAIN, Operand, Tiling, product
from genwright.kernels.cuda.packed_linear import MAX_PACKED_TOKENS
from genwright.kernels.cuda.skinny_linear import MAX_SKINNY_TOKENS, SkinnyTiling, n_tiles, serves

F32, F16, BF16 = PLAIN.values()
SHARED = 200 << 10  # bytes of shared memory that a block may use
# By format and whether there are several tokens: the fastest tiling for each number of chunks per row, measured on
# Llama-2-7B's and Llama-3.1-8B's products in a CUDA graph over more weights than the L2 cache holds.
HOPPER: dict[tuple[int, bool], dict[int, Tiling]] = {
    (BF16, False): {512: Tiling("gemv", 256, 4, 2), 1376: Tiling("gemv", 256, 2, 1)},
    (INT8, False): {
        256: Tiling("gemv", 256, 8, 2),
        512: Tiling("gemv", 256, 4, 2),
        688: Tiling("gemv", 352, 2, 2),
        896: Tiling("gemv", 224, 2, 2),
        1792: Tiling("gemv", 448, 2, 1),
    },
    (INT4, False): {
        128: Tiling("gemv", 128, 8, 3),
        256: Tiling("gemv", 128, 4, 3),
        344: Tiling("gemv", 192, 4, 2),
        448: Tiling("gemv", 448, 4, 1),
        896: Tiling("gemv", 448, 2, 1),
    },
    (FP8, False): {256: Tiling("gemv", 256, 8, 1), 688: Tiling("gemv", 512, 4, 1)},
    (INT8, True): {256: Tiling("mma", 512, 4, 1), 688: Tiling("mma", 512, 1, 1)},
    (INT4, True): {128: Tiling("mma", 256, 4, 2), 344: Tiling("mma", 512, 2, 1)},
    (FP8, True): {256: Tiling("mma", 512, 2, 1)},
}
HOPPER[F16, False] = HOPPER[BF16, False]
HOPPER[F32, False] = {1024: Tiling("gemv", 512, 2, 1)}
# Of the skinny GEMM with int4, by tiles of tokens: the fastest for Llama-3.1-8B's gate and up, which have many rows,
# and for its other products. The second also reads the scales of larger groups.
# They serve what packed_skinny.cu cannot read: short rows, and rows that are not whole slices.
SKINNY = {
    1: (SkinnyTiling(256, 1, 512, 3), SkinnyTiling(256, 1, 512, 3)),
    2: (SkinnyTiling(256, 2, 256, 3), SkinnyTiling(256, 1, 512, 3)),
}
MANY_ROWS = 16384
SKINNY_INT8 = SkinnyTiling(256, 1, 256, 3)
# Of unpacked weights, by tiles of tokens; with more, cuBLAS is faster.
SKINNY_PLAIN = {1: SkinnyTiling(256, 1, 128, 5), 2: SkinnyTiling(128, 1, 128, 6), 4: SkinnyTiling(128, 1, 128, 6)}


def skinny_tiling(weight: Operand, x: torch.Tensor) -> SkinnyTiling | None:
    """For 2 to 16 tokens in int8 or int4, and 2 to 32 with unpacked weights.

    None if the kernel cannot read the weight, or if others are faster.
    """
    most = MAX_SKINNY_TOKENS if weight.scales is None else MAX_PACKED_TOKENS
    if not 1 < len(x) <= most:
        return None
    tokens = n_tiles(len(x))
    candidates: tuple[SkinnyTiling, ...] = ()
    if weight.format == INT4:
        candidates = SKINNY[tokens][0 if weight.matrix.shape[0] >= MANY_ROWS else 1 :]
    elif weight.format == INT8:
        candidates = (SKINNY_INT8,)
    elif weight.scales is None:
        candidates = (SKINNY_PLAIN[tokens],)
    return next((tiles for tiles in candidates if serves(x, weight, tiles)), None)


def wgmma_team_rows(weight: Operand, x: torch.Tensor) -> int | None:
    """How many rows a team of packed_wgmma.cu takes; None if it cannot read the weight, or if others are faster."""
    if len(x) <= MAX_PACKED_TOKENS or not wgmma_linear.serves(x, weight):
        return None
    few, many = wgmma_linear.TEAM_ROWS
    return many if weight.matrix.shape[0] >= MANY_ROWS else few


def tiling(weight: Operand, x: torch.Tensor, gate: bool, stack: bool = False) -> Tiling | None:
    """None if no kernel fits: an unpacked weight with several tokens, too little shared memory, or an older GPU.

    With `stack` the weight is a stack of matrices and x is one token.
    """
    kernels = kernels_for(weight, len(x)) - ({"mma"} if stack else set())
    if not kernels or (kernels == {"mma"} and 2 * len(x) * (weight.columns + 4096) > SHARED):
        return None
    if torch.cuda.get_device_capability(x.device)[0] == 9:
        known, chunks = HOPPER[weight.format, len(x) > 1], weight.columns // weight.width
        return known[min(known, key=lambda count: abs(count - chunks))]
    return _timed(weight, x, gate, kernels)


def kernels_for(weight: Operand, tokens: int) -> set[str]:
    """The kernels that can read the weight; none for an unpacked weight with several tokens."""
    return ({"gemv"} if tokens == 1 else set()) | ({"mma"} if weight.scales is not None else set())


def _timed(weight: Operand, x: torch.Tensor, gate: bool, kernels: set[str]) -> Tiling | None:
    """The fastest tiling for this shape: timed at its first use, then read from the cache folder."""
    name = torch.cuda.get_device_name(x.device)
    table = _table(name)
    key = f"{x.dtype} {weight.format} {weight.matrix.shape[-2]} {weight.columns} {weight.group} {len(x)} {gate}"
    key += "".join(f" {kernel}" for kernel in sorted(kernels))
    if key not in table:
        fastest = _fastest(weight, x, gate, kernels)
        table[key] = [] if fastest is None else list(vars(fastest).values())
        keep(_path(name), json.dumps(table).encode())
    if not table[key]:
        return None
    kernel, threads, depth, blocks = table[key]
    return Tiling(str(kernel), int(threads), int(depth), int(blocks))


def _fastest(weight: Operand, x: torch.Tensor, gate: bool, kernels: set[str]) -> Tiling | None:
    """Time every tiling of the Hopper table, except those that this GPU cannot launch."""
    candidates = {each for table in HOPPER.values() for each in table.values() if each.kernel in kernels}
    times = {}
    for each in sorted(candidates, key=str):
        try:
            with launching():
                times[each] = _milliseconds(weight, x, gate, each)
        except RuntimeError:
            continue
    return min(times, key=times.__getitem__, default=None)


def _milliseconds(weight: Operand, x: torch.Tensor, gate: bool, tiling: Tiling) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(6):
        if turn == 1:
            start.record()
        product(x, weight, tiling, gate=gate, dependent=False)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _path(name: str) -> Path:
    return kernel_file(f"tilings-{name.replace(' ', '-')}.json")


@cache
def _table(name: str) -> dict[str, list[str | int]]:
    try:
        found: dict[str, list[str | int]] = json.loads(_path(name).read_text(encoding="utf-8"))
        return {key: value for key, value in found.items() if len(value) in (0, 4)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
