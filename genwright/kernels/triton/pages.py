"""Load and store rows of a paged cache, in the model's dtype or quantized to 8 or 4 bits (see quant/kv_cache.py).

A row is one token's vector of one key-value head: in a cache [pages, PAGE, kv_heads, ...], row (page * PAGE + offset) *
kv_heads + head. BITS is 0 for the model's own dtype.
"""

from collections.abc import Mapping

import torch
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.quant import kv_cache

GROUP = tl.constexpr(kv_cache.GROUP[4])  # elements per scale in 4 bits; in 8 bits a row has one scale
# float32 has no fraction bits at this size, so x + ROUND - ROUND is x rounded to nearest, ties to even.
ROUND = tl.constexpr(1.5 * 2**23)


def bits_of(rows: Tensor) -> int:
    """The BITS of a cache tensor."""
    return {torch.int8: 8, torch.uint8: 4}.get(rows.dtype, 0)


def packing(tensors: Mapping[str, Tensor] | None) -> tuple[Tensor | None, ...]:
    """Scales of k and v, then their minimums; None for those that the cache does not have."""
    return tuple((tensors or {}).get(name) for name in ("k.scale", "v.scale", "k.minimum", "v.minimum"))


@jit
def elements(HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BITS: tl.constexpr):
    # Which element of a row each column of a tile holds; HEAD_DIM or more for padding. In 4 bits the halves of the tile
    # are the halves of the row, because a byte holds one element of each half.
    d = tl.arange(0, BLOCK_D)
    if BITS == 4:
        column = d % (BLOCK_D // 2)
        d = tl.where(column < HEAD_DIM // 2, d // (BLOCK_D // 2) * (HEAD_DIM // 2) + column, HEAD_DIM)
    return d


@jit
def load_rows(
    rows, scales, minimums, row, live, dtype: tl.constexpr, STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    # Rows row, row + STRIDE, ... [K, D] in `dtype`, 0 where not live. 8-bit rows are not yet multiplied by their scale.
    i = tl.arange(0, BLOCK_K)
    d = tl.arange(0, BLOCK_D)
    if BITS == 4:
        HALF: tl.constexpr = HEAD_DIM // 2
        GROUPS: tl.constexpr = (HEAD_DIM + GROUP - 1) // GROUP
        column, high = d % (BLOCK_D // 2), d // (BLOCK_D // 2)
        byte = tl.load(rows + row * HALF + i[:, None] * (STRIDE * HALF) + column[None, :], live, 0).to(tl.int32)
        q = ((byte >> (high * 4)[None, :]) & 15).to(tl.float32)
        at = row * GROUPS + i[:, None] * (STRIDE * GROUPS) + (elements(HEAD_DIM, BLOCK_D, BITS) // GROUP)[None, :]
        scale = tl.load(scales + at, live, 0.0).to(tl.float32)
        tile = q * scale + tl.load(minimums + at, live, 0.0).to(tl.float32)
    else:
        tile = tl.load(rows + row * HEAD_DIM + i[:, None] * (STRIDE * HEAD_DIM) + d[None, :], live, 0)
    return tile.to(dtype)


@jit
def store_rows(
    rows, scales, minimums, row, x1, x2, inside,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, HALF_BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    # Quantize and store both halves x1 and x2 (float32 [H, HALF_BLOCK]) of the rows row [H], rounded to nearest.
    HALF: tl.constexpr = HEAD_DIM // 2
    d = tl.arange(0, HALF_BLOCK)
    valid = tl.max(inside.to(tl.int32), 1) > 0
    if BITS == 8:
        largest = tl.maximum(tl.max(tl.abs(x1), 1), tl.max(tl.abs(x2), 1))
        scale = tl.div_rn(largest, 127.0).to(tl.float16)
        tl.store(scales + row, scale, valid)
        step = scale.to(tl.float32)
        step = tl.where(step == 0.0, 1.0, step)[:, None] + tl.zeros([BLOCK_H, HALF_BLOCK], tl.float32)
        x1, x2 = tl.div_rn(x1, step) + ROUND - ROUND, tl.div_rn(x2, step) + ROUND - ROUND
        x1, x2 = tl.clamp(x1, -127.0, 127.0), tl.clamp(x2, -127.0, 127.0)
    if BITS == 4:
        GROUPS: tl.constexpr = (HEAD_DIM + GROUP - 1) // GROUP
        step1 = tl.zeros([BLOCK_H, HALF_BLOCK], tl.float32) + 1.0
        step2, low1, low2 = step1, step1, step1
        for g in tl.static_range(GROUPS):
            in1 = inside & (d // GROUP == g)[None, :]
            in2 = inside & ((d + HALF) // GROUP == g)[None, :]
            min1, min2 = tl.where(in1, x1, float("inf")), tl.where(in2, x2, float("inf"))
            max1, max2 = tl.where(in1, x1, float("-inf")), tl.where(in2, x2, float("-inf"))
            minimum = tl.minimum(tl.min(min1, 1), tl.min(min2, 1)).to(tl.float16)
            low = minimum.to(tl.float32)
            maximum = tl.maximum(tl.max(max1, 1), tl.max(max2, 1))
            scale = tl.div_rn(maximum - low, 15.0).to(tl.float16)
            tl.store(scales + row * GROUPS + g, scale, valid)
            tl.store(minimums + row * GROUPS + g, minimum, valid)
            step = scale.to(tl.float32)
            step = tl.where(step == 0.0, 1.0, step)
            step1, step2 = tl.where(in1, step[:, None], step1), tl.where(in2, step[:, None], step2)
            low1, low2 = tl.where(in1, low[:, None], low1), tl.where(in2, low[:, None], low2)
        q1 = tl.clamp(tl.div_rn(x1 - low1, step1) + ROUND - ROUND, 0.0, 15.0).to(tl.int32)
        q2 = tl.clamp(tl.div_rn(x2 - low2, step2) + ROUND - ROUND, 0.0, 15.0).to(tl.int32)
        tl.store(rows + row[:, None] * HALF + d[None, :], (q1 | (q2 << 4)).to(tl.uint8), inside)
    else:
        to = rows + row[:, None] * HEAD_DIM + d[None, :]
        tl.store(to, x1.to(rows.dtype.element_ty), inside)
        tl.store(to + HALF, x2.to(rows.dtype.element_ty), inside)
