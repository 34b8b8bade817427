"""Linear layers of a few tokens with a weight of any format, fused with the norm, bias, gate and residual."""

from dataclasses import dataclass

import torch

from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Weight

MAX_TOKENS = 8
CHUNK = 16  # bytes per load of a thread
PLAIN = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
INT8, INT4, FP8 = 3, 4, 5


@dataclass(frozen=True)
class Tiling:
    """Which kernel computes a product, and its launch parameters."""

    kernel: str
    threads: int  # at most, per block
    depth: int  # rows at a time (gemv), or chunks in flight (mma)
    blocks: int  # per multiprocessor


@dataclass(frozen=True)
class Operand:
    """A weight, or a stack of weights of one shape, as the kernels read it."""

    format: int
    matrix: torch.Tensor  # [rows, ...] or [stack, rows, ...]; a row is a whole number of chunks
    columns: int
    width: int  # columns per chunk
    scales: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    group: int = 0  # columns per scale; 0 for one scale per row
    scale_rows: int = 1  # rows per scale


def operand(weight: Weight) -> Operand | None:
    """None if the kernels cannot read the weight: a row or a group of columns is not a whole number of chunks."""
    if isinstance(weight, torch.Tensor):
        found = Operand(PLAIN.get(weight.dtype, -1), weight, weight.shape[-1], CHUNK // weight.itemsize)
    elif isinstance(weight, Int8):
        group = weight.group if weight.group < weight.shape[-1] else 0
        found = Operand(INT8, weight.values, weight.shape[-1], CHUNK, weight.scales, None, group)
    elif isinstance(weight, Int4):
        found = Operand(INT4, weight.words, weight.inputs, 2 * CHUNK, weight.scales, weight.minimums, weight.group)
    elif isinstance(weight, Fp8Blocks):
        group = weight.width if weight.width < weight.shape[-1] or weight.height > 1 else 0
        found = Operand(FP8, weight.values, weight.shape[-1], CHUNK, weight.scales, None, group, weight.height)
    else:
        return None
    fits = found.format >= 0 and found.matrix.is_contiguous()
    return found if fits and found.columns % found.width == 0 and found.group % found.width == 0 else None


def product(
    x: torch.Tensor,
    weight: Operand,
    tiling: Tiling,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    experts: torch.Tensor | None = None,
    dependent: bool = True,
) -> torch.Tensor:
    """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns].

    If the weight is a stack, `experts` [tokens, share] (int64) selects each token's matrices; the result is
    [tokens * share, outputs], and a residual is not supported.
    """
    assert x.shape[1] == weight.columns
    tokens, outputs = len(x), weight.matrix.shape[-2] // (2 if gate else 1)
    pairs = tokens if experts is None else experts.numel()
    chunks = weight.columns // weight.width
    y = x.new_empty(pairs, outputs)
    scale_type = 0 if weight.scales is None else PLAIN[weight.scales.dtype]
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": scale_type, "OUTPUTS": outputs,
        "COLUMNS": weight.columns, "GROUP": weight.group, "SCALE_ROWS": weight.scale_rows, "BLOCKS": tiling.blocks,
        "NORM": norm is not None, "GATE": gate, "MINIMUMS": weight.minimums is not None, "PDL": dependent,
        "SHARE": 0 if experts is None else experts.shape[1],
    }  # fmt: skip
    if tiling.kernel == "gemv":
        per_thread = -(-chunks // tiling.threads)
        threads = -(-chunks // (per_thread * 32)) * 32  # no warp without work
        rows, shared = tiling.depth, 0
        shape |= {"THREADS": threads, "ROWS": rows}
    else:
        threads, rows = tiling.threads, 16
        unit = threads // 8 * tiling.depth
        padded_chunks = -(-chunks // unit) * unit
        assert experts is None
        shared = tokens * (padded_chunks * weight.width * 2 + 64) + 8 * weight.width
        shape |= {"THREADS": threads, "DEPTH": tiling.depth, "TOKENS": tokens}
    tiles = -(-outputs // (rows // 2 if gate else rows))
    grid_y = 1 if experts is None else pairs
    grid_x = min(tiles, -(-tiling.blocks * multiprocessors(x.device.index) // grid_y))
    arguments = (x, norm, eps, weight.matrix, weight.scales, weight.minimums, bias, residual, y, experts)
    kernel = compiled_kernel(x.device.index, tiling.kernel, **shape)
    kernel((grid_x, grid_y, 1), threads, arguments, shared, dependent)
    return y
