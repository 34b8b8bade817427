"""Products of many tokens with their experts: pairs of token and expert, grouped by expert, in one launch per product.

Nothing waits for the host: a program has one expert and a tile of its outputs, and loops over the expert's pairs. The
weights may have any format and are dequantized in registers, as in `matmul.py`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.weights import load_scales, parts, widen
from genwright.quant.int4 import Int4
from genwright.quant.packed import Weight

SCAN = 1024  # pairs that a program of `group_pairs` reads at a time


@dataclass(frozen=True)
class GroupedTiles:
    """Tile sizes: pairs, outputs and columns per step, pipeline stages and warps."""

    pairs: int
    outputs: int
    columns: int
    stages: int
    warps: int


@dataclass(frozen=True)
class Groups:
    """Pairs of token and expert by expert: those of expert e are order[ends[e - 1] : ends[e]], in their own order."""

    order: Tensor  # int32 [pairs]
    ends: Tensor  # int32 [experts]


@jit(do_not_specialize=["pairs"])
def _group_pairs(ids, order, ends, pairs, SCAN: tl.constexpr, PDL: tl.constexpr):
    # Program e places the pairs of expert e after those of all experts below it.
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    start = 0
    for first in range(0, pairs, SCAN):
        i = first + tl.arange(0, SCAN)
        start += tl.sum((tl.load(ids + i, i < pairs, expert) < expert).to(tl.int32), 0)
    for first in range(0, pairs, SCAN):
        i = first + tl.arange(0, SCAN)
        own = (tl.load(ids + i, i < pairs, -1) == expert).to(tl.int32)
        tl.store(order + start + tl.cumsum(own, 0) - 1, i, own > 0)
        start += tl.sum(own, 0)
    tl.store(ends + expert, start)


@jit
def _load_step(
    values, scales, minimums, row, scale_row, start, stride, groups, K,
    INT4: tl.constexpr, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    # Columns start to start + BLOCK_K of the rows row [N], transposed to [BLOCK_K, N].
    PER: tl.constexpr = 8 if INT4 else 1  # weights per stored value
    v = start // PER + tl.arange(0, BLOCK_K // PER)
    if EVEN:
        q = tl.load(values + row[:, None] * stride + v[None, :])
    else:
        q = tl.load(values + row[:, None] * stride + v[None, :], (v < stride)[None, :], 0.0)
    scale, low = 1.0, 0.0
    if SCALED == "weight":
        scale = load_scales(scales, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
        if MINIMUMS:
            low = load_scales(minimums, scale_row, start, groups, BLOCK_K, PER, WIDTH, UNIT)
    w = widen(q, scale, low, INT4, SCALED == "weight", MINIMUMS, dtype)
    if INT4:  # columns as [lane 4, word of the lane, half 2, weight 4], for x alike; see matmul.py
        w = tl.permute(tl.reshape(w, [row.shape[0], 4, BLOCK_K // 32, 2, 4]), [2, 3, 1, 4, 0])
        w = tl.reshape(w, [BLOCK_K, row.shape[0]])
    else:
        w = tl.trans(w)
    return w


@jit
def _step_scale(scales, scale_row, start, groups, SCALED: tl.constexpr, WIDTH: tl.constexpr):
    # The scale [1, N] of columns from `start`, if a step has one; at the end, any.
    scale = 1.0
    if SCALED == "slice":
        scale = tl.load(scales + scale_row + tl.minimum(start // WIDTH, groups - 1)).to(tl.float32)[None, :]
    return scale


@jit
def _grouped(
    x, values, scales, minimums, order, ends, y, N, K, x_stride, stride, groups,
    SHARE: tl.constexpr, GATE: tl.constexpr, INT4: tl.constexpr, SCALED: tl.constexpr, MINIMUMS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # x [pairs / SHARE, K], values [experts, N or with GATE 2 N, stride] -> y [pairs, N]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dtype: tl.constexpr = x.dtype.element_ty
    expert = tl.program_id(1)
    end = tl.load(ends + expert)
    begin = tl.load(ends + expert - 1, expert > 0, 0)
    if begin >= end:
        return
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # Rows past the end read the last row; their results are not stored.
    row = expert.to(tl.int64) * (2 * N if GATE else N) + tl.minimum(n, N - 1)
    scale_row, up_scale_row = row // HEIGHT * groups, (row + N) // HEIGHT * groups
    for top in range(begin, end, BLOCK_M):
        m = top + tl.arange(0, BLOCK_M)
        pair = tl.load(order + m, m < end, 0).to(tl.int64)
        x_at = x + (pair // SHARE)[:, None] * x_stride + k[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        # Scales are loaded one step ahead: Triton only prefetches the operands of tl.dot.
        scale = _step_scale(scales, scale_row, 0, groups, SCALED, WIDTH)
        up_scale = _step_scale(scales, up_scale_row if GATE else scale_row, 0, groups, SCALED, WIDTH)
        for start in range(0, K, BLOCK_K):
            next_scale = _step_scale(scales, scale_row, start + BLOCK_K, groups, SCALED, WIDTH)
            if EVEN:
                xs = tl.load(x_at + start, (m < end)[:, None], 0.0)
            else:
                xs = tl.load(x_at + start, (m < end)[:, None] & (start + k < K)[None, :], 0.0)
            if INT4:
                xs = tl.permute(tl.reshape(xs, [BLOCK_M, 4, BLOCK_K // 32, 2, 4]), [0, 2, 3, 1, 4])
                xs = tl.reshape(xs, [BLOCK_M, BLOCK_K])
            w = _load_step(
                values, scales, minimums, row, scale_row, start, stride, groups, K,
                INT4, SCALED, MINIMUMS, WIDTH, UNIT, EVEN, BLOCK_K, dtype,
            )  # fmt: skip
            if SCALED == "slice":
                acc += tl.dot(xs, w, input_precision="ieee") * scale
            else:
                acc = tl.dot(xs, w, acc, input_precision="ieee")
            if GATE:
                next_up_scale = _step_scale(scales, up_scale_row, start + BLOCK_K, groups, SCALED, WIDTH)
                w = _load_step(
                    values, scales, minimums, row + N, up_scale_row, start, stride, groups, K,
                    INT4, SCALED, MINIMUMS, WIDTH, UNIT, EVEN, BLOCK_K, dtype,
                )  # fmt: skip
                if SCALED == "slice":
                    up_acc += tl.dot(xs, w, input_precision="ieee") * up_scale
                else:
                    up_acc = tl.dot(xs, w, up_acc, input_precision="ieee")
                up_scale = next_up_scale
            scale = next_scale
        if SCALED == "end":
            acc *= tl.load(scales + scale_row).to(tl.float32)[None, :]
        if GATE:
            if SCALED == "end":
                up_acc *= tl.load(scales + up_scale_row).to(tl.float32)[None, :]
            acc = acc / (1.0 + tl.exp(-acc)) * up_acc
        tl.store(y + pair[:, None] * N + n[None, :], acc.to(dtype), (m < end)[:, None] & (n < N)[None, :])


def group_pairs(ids: Tensor, experts: int, pdl: bool = False) -> Groups:
    """Group pairs by expert: ids int64 [tokens, top_k] of their experts."""
    assert ids.is_contiguous()
    order = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    ends = torch.empty(experts, dtype=torch.int32, device=ids.device)
    _group_pairs[(experts,)](ids, order, ends, ids.numel(), SCAN=SCAN, PDL=pdl, num_warps=4, launch_pdl=pdl)
    return Groups(order, ends)


def grouped_matmul(
    x: Tensor,
    weight: Weight,
    groups: Groups,
    share: int,
    gate: bool = False,
    tiles: GroupedTiles | None = None,
    pdl: bool = False,
) -> Tensor:
    """Each pair's row of x times the transpose of its expert's matrix, in float32, to [pairs, outputs].

    weight [experts, outputs, columns]; x [pairs, columns], or [tokens, columns] if each token has equally many pairs.
    With `gate`, silu(y1) * y2 of the halves of the result. `share` is the number of pairs that an expert is expected to
    have; for a given one, a pair's bits do not depend on the others.
    """
    pairs, (experts, rows, k) = len(groups.order), weight.shape
    n = rows // 2 if gate else rows
    values, scales, minimums, height, width = parts(weight)
    assert x.stride(1) == 1 and values.is_contiguous() and x.shape[1] == k and pairs % len(x) == 0
    tiles = tiles or pick_tiles(share, gate, x.dtype)
    columns = min(tiles.columns, max(32, triton.next_power_of_2(k)))
    if scales is None:
        scaled = ""
    elif minimums is None and width >= k:
        scaled = "end"
    else:
        scaled = "slice" if minimums is None and width % columns == 0 else "weight"
    width = width if scaled in ("slice", "weight") else columns  # one binary for every row length
    y = torch.empty(pairs, n, dtype=x.dtype, device=x.device)
    _grouped[(triton.cdiv(n, tiles.outputs), experts)](
        x, values, *(x if tensor is None else tensor for tensor in (scales, minimums)), groups.order, groups.ends, y,
        n, k, x.stride(0), values.shape[-1], 0 if scales is None else scales.shape[-1],
        SHARE=pairs // len(x), GATE=gate, INT4=isinstance(weight, Int4), SCALED=scaled, MINIMUMS=minimums is not None,
        HEIGHT=height, WIDTH=width, UNIT=min(width & -width, columns), EVEN=k % columns == 0,
        BLOCK_M=tiles.pairs, BLOCK_N=tiles.outputs, BLOCK_K=columns, PDL=pdl,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=pdl,
    )  # fmt: skip
    return y


def pick_tiles(pairs: int, gate: bool, dtype: torch.dtype) -> GroupedTiles:
    """Tiles for so many pairs per expert: with few, many loads of weights in flight; float32 uses registers."""
    if dtype == torch.float32:
        return GroupedTiles(16, 16 if gate else 32, 32, 1, 4)
    if pairs <= 16:
        return GroupedTiles(16, 32 if gate else 64, 128, 4, 4)
    if pairs <= 64:
        return GroupedTiles(32, 32 if gate else 64, 128, 3, 4)
    return GroupedTiles(64, 64, 64, 4, 8) if gate else GroupedTiles(64, 128, 64, 4, 4)
