"""Linear layers of a few tokens with a weight in bit planes, fused with the norm, bias, gate and residual."""

from typing import NamedTuple

import torch

from genwright.kernels.cuda.fused_linear import MAX_TOKENS, PLAIN
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors
from genwright.quant.bit_planes import CHUNK, BitPlanes

PLANES = 6  # the kernel's name for scales in bytes
SHARED = 200 << 10  # bytes of shared memory that a block may use
MAX_WARPS = 16
SLICE = 4  # chunks that a warp reads at a time


class Tiling(NamedTuple):
    """Warps of a block, how many slices of a row each has in flight and reads in all, and blocks per multiprocessor."""

    warps: int
    depth: int
    turns: int
    blocks: int


def tiling(columns: int, tokens: int) -> Tiling:
    """Warps share a row's slices evenly; with few slices, several blocks keep the multiprocessor busy."""
    slices = -(-columns // (CHUNK * SLICE))
    depth = 2 if slices > MAX_WARPS and tokens <= 4 else 1  # more tokens need the registers for their sums
    turns = -(-slices // (MAX_WARPS * depth)) * depth
    warps = -(-slices // turns)
    blocks = max(1, MAX_WARPS // warps) * (2 if depth == 1 and tokens == 1 else 1)
    return Tiling(warps, depth, turns, min(blocks, 8))


def shared_bytes(weight: BitPlanes, tokens: int, tiles: Tiling) -> int:
    """Shared memory of a block: the digits, scales and sums of x."""
    chunks = tiles.warps * tiles.turns * SLICE
    return tokens * chunks * (2 * CHUNK + 4 + 4 * CHUNK // weight.group) + 16


def serves(x: torch.Tensor, weight: BitPlanes) -> bool:
    """Whether the kernel takes so many tokens, and the GPU has its instructions."""
    fits = len(x) <= MAX_TOKENS and all(tensor.is_contiguous() for tensor in weight.tensors().values())
    enough = fits and shared_bytes(weight, len(x), tiling(x.shape[1], len(x))) <= SHARED
    return enough and torch.cuda.get_device_capability(x.device) >= (8, 0)


def planes_product(
    x: torch.Tensor,
    weight: BitPlanes,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    experts: torch.Tensor | None = None,
    dependent: bool = True,
    out: torch.Tensor | None = None,  # columns of a matrix
    tiles: Tiling | None = None,
) -> torch.Tensor:
    """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns].

    If the weight is a stack, `experts` [tokens, share] (int64) selects each token's matrices; the result is
    [tokens * share, outputs], and a residual is not supported.
    """
    columns, tokens = weight.shape[-1], len(x) if experts is None else 1
    assert x.shape[1] == columns and x.is_contiguous()
    outputs, pairs = weight.shape[-2] // (2 if gate else 1), len(x) if experts is None else experts.numel()
    tiles = tiles or tiling(columns, tokens)
    y = x.new_empty(pairs, outputs) if out is None else out
    shape = {
        "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": PLANES if weight.factors is not None else PLAIN[weight.scales.dtype],
        "OUTPUTS": outputs, "COLUMNS": columns, "TOKENS": tokens, **_code(weight),
        "THREADS": 32 * tiles.warps, "DEPTH": tiles.depth, "BLOCKS": tiles.blocks,
        "NORM": norm is not None, "GATE": gate, "PDL": dependent, "SHARE": 0 if experts is None else experts.shape[1],
    }  # fmt: skip
    grid_y = 1 if experts is None else pairs
    row_tiles = -(-outputs // (8 if gate else 16))
    grid_x = min(row_tiles, -(-tiles.blocks * multiprocessors(x.device.index) // grid_y))
    planes = weight.nibbles, weight.pairs, weight.singles, weight.scales, weight.factors
    kernel = compiled_kernel(x.device.index, "planes_mma", **shape)
    arguments = (x, norm, eps, *planes, bias, residual, y, y.stride(0), experts)
    kernel((grid_x, grid_y, 1), 32 * tiles.warps, arguments, shared_bytes(weight, tokens, tiles), dependent)
    return y


def _code(weight: BitPlanes) -> dict[str, int]:
    """How the kernel reads the weight's codes: macros."""
    table = {}
    if weight.table is not None:
        signed = bytes(value - weight.zero & 255 for value in weight.table)
        table = {f"TABLE{i}": int.from_bytes(signed[4 * i : 4 * i + 4], "little") for i in range(4)}
    zero = 0 if weight.table else weight.zero
    code = {"BITS": weight.bits, "GROUP": weight.group, "ZERO": zero, "MINIMUMS": weight.minimums, "TABLE": bool(table)}
    return code | table
