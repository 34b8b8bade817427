"""Grouped products of fp8 experts with inputs that are rounded to fp8, so that tensor cores read both as they are.

Hopper multiplies fp8 in tiles of at least 64 rows. With few pairs per expert, these are rows of the weight.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.fp8_inputs import quantize_inputs
from genwright.kernels.triton.grouped_matmul import GroupedTiles, Groups
from genwright.kernels.triton.jit import jit
from genwright.quant.fp8 import BLOCK, Fp8Blocks
from genwright.quant.packed import Weight


@jit
def _grouped_fp8(
    x, x_scales, values, scales, order, ends, y, N, K, x_scale_stride, groups,
    SHARE: tl.constexpr, GATE: tl.constexpr, HEIGHT: tl.constexpr, SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # x [pairs / SHARE, K], values [experts, N or with GATE 2 N, K] -> y [pairs, N]; SWAP computes its transpose.
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(1)
    end = tl.load(ends + expert)
    begin = tl.load(ends + expert - 1, expert > 0, 0)
    if begin >= end:
        return
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # Rows past the end read the last row; their results are not stored.
    row = expert.to(tl.int64) * (2 * N if GATE else N) + tl.minimum(n, N - 1)
    w_at, up_at = values + row[:, None] * K + k[None, :], values + (row + N)[:, None] * K + k[None, :]
    scale_at, up_scale_at = scales + row // HEIGHT * groups, scales + (row + N) // HEIGHT * groups
    for top in range(begin, end, BLOCK_M):
        m = top + tl.arange(0, BLOCK_M)
        pair = tl.load(order + m, m < end, 0).to(tl.int64)
        token = pair // SHARE
        x_at = x + token[:, None] * K + k[None, :]
        acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
        up_acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
        # Scales are loaded one step ahead: Triton only prefetches the operands of tl.dot.
        x_scale, scale, up_scale = tl.load(x_scales + token), tl.load(scale_at), tl.load(scale_at)
        if GATE:
            up_scale = tl.load(up_scale_at)
        for start in range(0, K, BLOCK_K):
            group = tl.minimum(start // BLOCK_K + 1, groups - 1)
            next_x_scale, next_scale = tl.load(x_scales + group * x_scale_stride + token), tl.load(scale_at + group)
            xs, w = tl.load(x_at + start), tl.load(w_at + start)
            if SWAP:
                acc += tl.dot(w, tl.trans(xs)) * (scale[:, None] * x_scale[None, :])
            else:
                acc += tl.dot(xs, tl.trans(w)) * (x_scale[:, None] * scale[None, :])
            if GATE:
                next_up_scale, w = tl.load(up_scale_at + group), tl.load(up_at + start)
                if SWAP:
                    up_acc += tl.dot(w, tl.trans(xs)) * (up_scale[:, None] * x_scale[None, :])
                else:
                    up_acc += tl.dot(xs, tl.trans(w)) * (x_scale[:, None] * up_scale[None, :])
                up_scale = next_up_scale
            x_scale, scale = next_x_scale, next_scale
        if GATE:
            acc = acc / (1.0 + tl.exp(-acc)) * up_acc
        if SWAP:
            to, inside = y + pair[None, :] * N + n[:, None], (m < end)[None, :] & (n < N)[:, None]
        else:
            to, inside = y + pair[:, None] * N + n[None, :], (m < end)[:, None] & (n < N)[None, :]
        tl.store(to, acc.to(y.dtype.element_ty), inside)


def serves(weight: Weight) -> bool:
    """Whether a stack of experts has blocks of 128 columns."""
    return isinstance(weight, Fp8Blocks) and weight.width == BLOCK and weight.shape[-1] % BLOCK == 0


def grouped_fp8_matmul(
    x: Tensor,
    weight: Fp8Blocks,
    groups: Groups,
    share: int,
    gate: bool = False,
    tiles: GroupedTiles | None = None,
    pdl: bool = False,
) -> Tensor:
    """`grouped_matmul` with rounded inputs; tiles have 128 columns."""
    pairs, (experts, rows, k) = len(groups.order), weight.shape
    n = rows // 2 if gate else rows
    tiles = tiles or pick_fp8_tiles(share, gate)
    values, scales = quantize_inputs(x, pdl)
    y = torch.empty(pairs, n, dtype=x.dtype, device=x.device)
    _grouped_fp8[(triton.cdiv(n, tiles.outputs), experts)](
        values, scales, weight.values, weight.scales, groups.order, groups.ends, y, n, k, scales.stride(1),
        weight.scales.shape[-1], SHARE=pairs // len(x), GATE=gate, HEIGHT=weight.height, SWAP=tiles.pairs < 64,
        BLOCK_M=tiles.pairs, BLOCK_N=tiles.outputs, BLOCK_K=tiles.columns, PDL=pdl,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=pdl,
    )  # fmt: skip
    return y


def pick_fp8_tiles(share: int, gate: bool) -> GroupedTiles:
    """Tiles for so many pairs per expert."""
    if share <= 16:
        return GroupedTiles(16, 64, BLOCK, 4 if gate else 5, 4)
    if share <= 64:
        return GroupedTiles(32, 64, BLOCK, 4, 4)
    return GroupedTiles(64, 64, BLOCK, 3, 8 if gate else 4)
