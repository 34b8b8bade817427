"""Dequantize a packed weight in one pass, for cuBLAS products of many rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.weights import load_scales, parts, widen
from genwright.quant.int4 import Int4
from genwright.quant.packed import Packed

ROWS, COLUMNS = 16, 256  # per program


def unpack(weight: Packed, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """[outputs, inputs], bit for bit what `dequantize` gives: computed in float32 and rounded to `dtype` at the end."""
    n, k = weight.shape
    values, scales, minimums, height, width = parts(weight)
    assert scales is not None
    out = torch.empty(n, k, dtype=dtype, device=values.device) if out is None else out
    width = 0 if width >= k else width  # 0: one scale per row, and one binary for every row length
    _unpack[(triton.cdiv(k, COLUMNS), triton.cdiv(n, ROWS))](
        values, scales, minimums, out, n, k, values.shape[1], scales.shape[1],
        INT4=isinstance(weight, Int4), HEIGHT=height, WIDTH=width, UNIT=min(width & -width, COLUMNS),
        BLOCK_N=ROWS, BLOCK_K=COLUMNS,
        enable_fp_fusion=False,  # `dequantize` rounds q * scale before it adds the minimum
    )  # fmt: skip
    return out


@jit
def _unpack(
    values, scales, minimums, out, N, K, stride, groups,
    INT4: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # values [N, stride], scales and minimums [ceil(N / HEIGHT), groups] -> out [N, K]
    PER: tl.constexpr = 8 if INT4 else 1  # weights per stored value
    MINIMUMS: tl.constexpr = minimums is not None
    start = tl.program_id(0) * BLOCK_K
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k, v = start + tl.arange(0, BLOCK_K), start // PER + tl.arange(0, BLOCK_K // PER)
    row = tl.minimum(n, N - 1).to(tl.int64)  # rows past the end read the last row; their results are not stored
    scale_row = row // HEIGHT * groups
    q = tl.load(values + row[:, None] * stride + v[None, :], (v < stride)[None, :], 0.0)
    low = 0.0
    if WIDTH:
        scale = load_scales(scales, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
        if MINIMUMS:
            low = load_scales(minimums, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
    else:
        scale = tl.load(scales + scale_row)[:, None]
        if MINIMUMS:
            low = tl.load(minimums + scale_row)[:, None]
    w = widen(q, scale, low, INT4, True, MINIMUMS, tl.float32)
    tl.store(out + row[:, None] * K + k[None, :], w.to(out.dtype.element_ty), (n < N)[:, None] & (k < K)[None, :])
