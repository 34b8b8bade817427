"""Products of a few tokens with a weight of any format, with what stands around them: norm, bias, gate, residual."""

from dataclasses import dataclass
from functools import cache

import torch

from genwright.kernels.cuda.nvrtc import Kernel, compile_kernel
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Weight

MOST_TOKENS = 8
CHUNK = 16  # bytes that a thread reads at once
PLAIN = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
INT8, INT4, FP8 = 3, 4, 5


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: which kernel, threads of a block at most, rows (gemv) or chunks ahead (others), blocks."""

    kernel: str
    threads: int
    depth: int
    blocks: int  # on a multiprocessor


@dataclass(frozen=True)
class Operand:
    """A weight, or a stack of equally large ones, as the kernel reads it."""

    format: int
    matrix: torch.Tensor  # [rows, ...] or [stack, rows, ...] of whole chunks
    columns: int
    width: int  # columns in a chunk
    scales: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    group: int = 0  # columns per scale, 0 where a row has one
    scale_rows: int = 1  # rows per scale


def operand(weight: Weight) -> Operand | None:
    """None for a weight that the kernel cannot read: rows that are no whole chunks, or groups that cut one."""
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

    Of a stack, `experts` [tokens, share] (int64) are the matrices that each token is multiplied by, one token at a
    time: [tokens * share, outputs]. No residual then.
    """
    assert x.shape[1] == weight.columns
    tokens, outputs = len(x), weight.matrix.shape[-2] // (2 if gate else 1)
    pairs = tokens if experts is None else experts.numel()
    chunks = weight.columns // weight.width
    y = x.new_empty(pairs, outputs)
    shape = {
        "FORMAT": weight.format,
        "X_TYPE": PLAIN[x.dtype],
        "SCALE_TYPE": 0 if weight.scales is None else PLAIN[weight.scales.dtype],
        "OUTPUTS": outputs,
        "COLUMNS": weight.columns,
        "GROUP": weight.group,
        "SCALE_ROWS": weight.scale_rows,
        "BLOCKS": tiling.blocks,
        "NORM": norm is not None,
        "GATE": gate,
        "MINIMUMS": weight.minimums is not None,
        "PDL": dependent,
        "SHARE": 0 if experts is None else experts.shape[1],
    }
    if tiling.kernel == "gemv":
        per_thread = -(-chunks // tiling.threads)
        threads = -(-chunks // (per_thread * 32)) * 32  # as many as all have work for
        rows, shared = tiling.depth, 0
        shape |= {"THREADS": threads, "ROWS": rows}
    else:
        threads, rows = tiling.threads, 16
        lanes = threads // 8 * tiling.depth  # chunks of x go round in so many
        taken = -(-chunks // lanes) * lanes
        shape |= {"THREADS": threads, "DEPTH": tiling.depth}
        if tiling.kernel == "integer_mma":
            shared = taken * (2 * weight.width + 8) + CHUNK
        else:
            assert experts is None
            shared = tokens * (taken * weight.width * 2 + 64) + 8 * weight.width
            shape["TOKENS"] = tokens
    work = -(-outputs // (rows // 2 if gate else rows))
    side = 1 if experts is None else pairs
    grid = min(work, -(-tiling.blocks * _multiprocessors(x.device.index) // side))
    arguments = (x, norm, eps, weight.matrix, weight.scales, weight.minimums, bias, residual, y, experts)
    _kernel(x.device.index, tiling.kernel, **shape)((grid, side, 1), threads, arguments, shared, dependent)
    return y


@cache
def _kernel(device: int, name: str, **defines: int) -> Kernel:
    return compile_kernel(name, defines)


@cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
