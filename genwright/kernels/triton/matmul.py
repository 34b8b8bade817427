"""Matmul of few rows with a weight in any format: the weight is read once and dequantized in registers.

A weight has a scale per row, per group of columns or per block. A scale per row multiplies the final sum; a scale that
covers all columns of one `tl.dot` multiplies its result; any other scale multiplies the weights, in x's dtype.

With few outputs, one program per tile of outputs does not saturate the memory bandwidth. The warps of a program then
split its columns (`split`): a batched `tl.dot` has one warp per slice of columns, and the slices are summed at the end.

The eight weights of an int4 word are in one thread's registers. The columns of a slice are therefore permuted to the
order in which the tensor core reads registers (four lanes to a row, four neighbours to a lane), for x and the weight
alike, which avoids another pass through shared memory.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.weights import load_scales, parts, widen
from genwright.quant.int4 import Int4
from genwright.quant.packed import Packed, Weight


@dataclass(frozen=True)
class Tiles:
    """Tile sizes: outputs per program, columns per step, pipeline stages and warps."""

    outputs: int
    columns: int
    stages: int
    warps: int
    split: bool = False  # warps split a step's columns instead of its outputs


def packed_matmul(
    x: Tensor, weight: Weight, bias: Tensor | None = None, deterministic: bool = False, tiles: Tiles | None = None
) -> Tensor:
    """x [rows, inputs] times the transpose of weight [outputs, inputs], summed in float32 to [rows, outputs].

    `deterministic` keeps the tile height at 16, so that a row's bits do not depend on the number of rows.
    """
    (m, k), n = x.shape, weight.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    rows = 16 if deterministic else min(64, max(16, triton.next_power_of_2(m)))
    tiles = tiles or pick_tiles(weight, rows)
    values, scales, minimums, height, width = parts(weight)
    columns = min(tiles.columns, max(32, triton.next_power_of_2(k)))
    split = min(tiles.warps, columns // 32) if tiles.split else 1
    if scales is None:
        scaled = ""
    elif minimums is None and width >= k:
        scaled = "end"
    else:
        scaled = "slice" if minimums is None and width % (columns // split) == 0 else "weight"
    width = width if scaled in ("slice", "weight") else columns  # one binary for every row length
    _matmul[(triton.cdiv(m, rows), triton.cdiv(n, tiles.outputs))](
        x, values, *(x if tensor is None else tensor for tensor in (scales, minimums, bias)), y,
        m, n, k, x.stride(0), values.shape[1], 0 if scales is None else scales.shape[1],
        INT4=isinstance(weight, Int4), SCALED=scaled, MINIMUMS=minimums is not None, BIAS=bias is not None,
        HEIGHT=height, WIDTH=width, UNIT=min(width & -width, columns), SPLIT=split, EVEN=k % columns == 0,
        BLOCK_M=rows, BLOCK_N=tiles.outputs, BLOCK_K=columns, num_stages=tiles.stages, num_warps=tiles.warps,
    )  # fmt: skip
    return y


def pick_tiles(weight: Weight, rows: int = 16) -> Tiles:
    """Tiles that keep all multiprocessors busy with enough loads in flight; `rows` is the tile height."""
    many = weight.shape[0] > 8192
    if rows > 16:
        return Tiles(64 if many else 32, 128, 4, 4)
    if isinstance(weight, Int4):
        return Tiles(32, 512, 3, 4, split=True) if many else Tiles(16, 512, 4, 4, split=True)
    if isinstance(weight, Packed) and not many:
        return Tiles(16, 512, 4, 4, split=True)
    return Tiles(32 if many else 16, 256, 4, 4, split=True)


@jit(do_not_specialize=["M"])
def _matmul(
    x, values, scales, minimums, bias, y, M, N, K, x_stride, stride, groups,
    INT4: tl.constexpr, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, BIAS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # x [M, K], values [N, stride], scales and minimums [ceil(N / HEIGHT), groups] -> y [M, N]
    dtype: tl.constexpr = x.dtype.element_ty
    PER: tl.constexpr = 8 if INT4 else 1  # weights per stored value
    SLICE: tl.constexpr = BLOCK_K // SPLIT
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, N - 1).to(tl.int64)  # rows past the end read the last row; their results are not stored
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // PER)
    part = tl.arange(0, SPLIT)
    x_at = x + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    value_at = values + row[:, None] * stride + v[None, :]
    scale_row = row // HEIGHT * groups
    acc = tl.zeros([SPLIT, BLOCK_M, BLOCK_N] if SPLIT > 1 else [BLOCK_M, BLOCK_N], tl.float32)
    slice_scale = 1.0
    if SCALED == "slice":  # load one step ahead: Triton only prefetches the operands of tl.dot
        slice_scale = _slice_scales(scales, scale_row, part * SLICE // WIDTH, groups)
    for start in range(0, K, BLOCK_K):
        if EVEN:
            xs = tl.load(x_at + start, (m < M)[:, None], 0.0)
            q = tl.load(value_at + start // PER)
        else:
            xs = tl.load(x_at + start, (m < M)[:, None] & (start + k < K)[None, :], 0.0)
            q = tl.load(value_at + start // PER, (start // PER + v < stride)[None, :], 0.0)
        scale, low = 1.0, 0.0
        if SCALED == "weight":
            scale = load_scales(scales, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
            if MINIMUMS:
                low = load_scales(minimums, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
        w = widen(q, scale, low, INT4, SCALED == "weight", MINIMUMS, dtype)
        if INT4:
            # columns as [slice, lane 4, word of the lane, half 2, weight 4]
            xs = tl.permute(tl.reshape(xs, [BLOCK_M, SPLIT, 4, SLICE // 32, 2, 4]), [1, 0, 3, 4, 2, 5])
            w = tl.permute(tl.reshape(w, [BLOCK_N, SPLIT, 4, SLICE // 32, 2, 4]), [1, 3, 4, 2, 5, 0])
            xs = tl.reshape(xs, [SPLIT, BLOCK_M, SLICE] if SPLIT > 1 else [BLOCK_M, SLICE])
            w = tl.reshape(w, [SPLIT, SLICE, BLOCK_N] if SPLIT > 1 else [SLICE, BLOCK_N])
        elif SPLIT > 1:
            xs = tl.permute(tl.reshape(xs, [BLOCK_M, SPLIT, SLICE]), [1, 0, 2])
            w = tl.permute(tl.reshape(w, [BLOCK_N, SPLIT, SLICE]), [1, 2, 0])
        else:
            w = tl.trans(w)
        if SCALED == "slice":
            ahead = _slice_scales(scales, scale_row, (start + BLOCK_K + part * SLICE) // WIDTH, groups)
            product = tl.dot(xs, w, input_precision="ieee")
            acc += product * (slice_scale if SPLIT > 1 else tl.reshape(slice_scale, [1, BLOCK_N]))
            slice_scale = ahead
        else:
            acc = tl.dot(xs, w, acc, input_precision="ieee")
    if SPLIT > 1:
        acc = tl.sum(acc, 0)
    if SCALED == "end":
        acc *= tl.load(scales + scale_row).to(tl.float32)[None, :]
    if BIAS:
        acc += tl.load(bias + row).to(tl.float32)[None, :]
    y_at = y + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_at, acc.to(dtype), (m < M)[:, None] & (n < N)[None, :])


@jit
def _slice_scales(scales, scale_row, group, groups):
    # [slices, 1, outputs]
    at = scale_row[None, :] + tl.minimum(group, groups - 1)[:, None]
    return tl.expand_dims(tl.load(scales + at).to(tl.float32), 1)
