"""FlashAttention-2 (Dao, 2023) over paged keys and values, for chunks of prompts.

The softmax uses exp2, so the kernels get `scale` times log2(e). The exponent is an explicit fma in masked and unmasked
blocks alike, so that a query's bits do not depend on whether a block was masked.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE
from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.pages import bits_of, elements, load_rows, packing


@jit
def attend_block(
    q, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums, page,
    block, kv_head, position, length, m, total, acc, scale, window,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    BITS: tl.constexpr, MASK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    # One block of keys for q [R, D] at position [R]: running maximum m [R], sum total [R], weighted values acc [R, D].
    row = (page * PAGE + block % (PAGE // BLOCK_K) * BLOCK_K) * KV_HEADS + kv_head
    i = tl.arange(0, BLOCK_K)
    key = block * BLOCK_K + i
    live = (elements(HEAD_DIM, BLOCK_D, BITS) < HEAD_DIM)[None, :]
    if MASK:
        live = live & (key < length)[:, None]
    k = load_rows(k_cache, k_scales, k_minimums, row, live, q.dtype, KV_HEADS, HEAD_DIM, BLOCK_K, BLOCK_D, BITS)
    v = load_rows(v_cache, v_scales, v_minimums, row, live, q.dtype, KV_HEADS, HEAD_DIM, BLOCK_K, BLOCK_D, BITS)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if BITS == 8:
        scores *= tl.load(k_scales + row + i * KV_HEADS).to(tl.float32)[None, :]
    if MASK:
        seen = key[None, :] <= position[:, None]
        if WINDOW:
            seen &= key[None, :] > position[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
    new_m = tl.maximum(m, tl.max(scores, 1) * scale)
    base = tl.where(new_m == float("-inf"), 0.0, new_m)  # -inf: the row has seen no key yet
    p = tl.exp2(tl.fma(scores, scale, -base[:, None]))
    shrink = tl.exp2(m - base)
    total = total * shrink + tl.sum(p, 1)
    if BITS == 8:
        p *= tl.load(v_scales + row + i * KV_HEADS, key < length, 0.0).to(tl.float32)[None, :]
    acc = tl.dot(p.to(q.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return new_m, total, acc


# One binary for every context length, and for sequences after any number of others.
@jit(do_not_specialize=["window", "table_stride"], do_not_specialize_on_alignment=["page_table", "lengths", "offsets"])
def _prefill(
    q, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums, page_table, lengths, offsets, out,
    scale, window, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    PER_PAGE: tl.constexpr = PAGE // BLOCK_K
    head, b = tl.program_id(0), tl.program_id(2)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # start the tiles with the most keys first
    start = tl.load(offsets + b)
    count = (tl.load(offsets + b + 1) - start).to(tl.int32)
    length = tl.load(lengths + b).to(tl.int32)
    top = tile * BLOCK_Q
    if top >= count:
        return
    i = top + tl.arange(0, BLOCK_Q)
    d = elements(HEAD_DIM, BLOCK_D, BITS)
    at = ((start + i)[:, None] * HEADS + head) * HEAD_DIM + d[None, :]
    inside = (i < count)[:, None] & (d < HEAD_DIM)[None, :]
    queries = tl.load(q + at, inside, 0.0)
    position = length - count + i
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    table = page_table + b.to(tl.int64) * table_stride
    kv_head = head // (HEADS // KV_HEADS)

    low = length - count + top  # the first query's position
    first = 0
    if WINDOW:
        first = tl.maximum(low - window + 1, 0) // BLOCK_K
    # Blocks below this one are visible to every query and need no causal mask; in padding `low` is negative.
    whole = tl.maximum(low + 1, 0) // BLOCK_K
    last = tl.cdiv(tl.minimum(low + BLOCK_Q, length), BLOCK_K)
    # Page numbers are loaded one block ahead, because a load in the loop would take a pipeline stage.
    page = tl.load(table + first // PER_PAGE)
    for causal in tl.static_range(2):  # first the blocks that every query sees, then those that need the causal mask
        for block in range(whole if causal else first, last if causal else whole):
            next_page = tl.load(table + tl.minimum(block + 1, last - 1) // PER_PAGE)
            m, total, acc = attend_block(
                queries, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums, page,
                block, kv_head, position, length, m, total, acc, scale, window,
                KV_HEADS, HEAD_DIM, PAGE, BLOCK_K, BLOCK_D, BITS, causal == 1 or WINDOW, WINDOW,
            )  # fmt: skip
            page = next_page
    tl.store(out + at, (acc / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty), inside)


@dataclass(frozen=True)
class Tile:
    """Tile sizes: queries per program, keys per block, warps and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


def launch_options(q: Tensor, k_cache: Tensor, window: int | None, tile: Tile, pdl: bool) -> dict[str, int]:
    """Compile-time options that the prefill and decode kernels share."""
    return {
        "KV_HEADS": k_cache.shape[2], "HEAD_DIM": q.shape[2], "PAGE": PAGE, "BLOCK_K": tile.keys,
        "BLOCK_D": triton.next_power_of_2(q.shape[2]), "BITS": bits_of(k_cache), "WINDOW": window is not None,
        "PDL": pdl, "num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": pdl,
    }  # fmt: skip


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    offsets: Tensor,
    max_queries: int,
    scale: float,
    window: int | None,
    scales: Mapping[str, Tensor] | None = None,
    tile: Tile | None = None,
    pdl: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of chunks: rows offsets[b] to offsets[b + 1] of q are the last of lengths[b] tokens.

    q [tokens, heads, head_dim] to [tokens, heads * head_dim], caches [pages, PAGE, kv_heads, head_dim], page_table
    [sequences, width], lengths [sequences], at most max_queries rows per sequence; `scales` has the `k.scale` etc. of a
    quantized cache. Each query reduces its keys in page order, so for a given tile its bits do not depend on the chunk
    or the batch. Rows of no sequence are neither read nor written.
    """
    tokens, heads, head_dim = q.shape
    tile = tile or prefill_tile(head_dim, q.dtype)
    assert q.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous() and page_table.stride(1) == 1
    out = q.new_empty(tokens, heads * head_dim) if out is None else out
    _prefill[(heads, triton.cdiv(max_queries, tile.queries), len(lengths))](
        q, k_cache, v_cache, *packing(scales), page_table, lengths, offsets, out,
        scale * math.log2(math.e), window or 0, page_table.stride(0),
        HEADS=heads, BLOCK_Q=tile.queries, **launch_options(q, k_cache, window, tile, pdl),
    )  # fmt: skip
    return out


def prefill_tile(head_dim: int, dtype: torch.dtype) -> Tile:
    """The largest tile that fits; float32 products use registers, so its tiles are small."""
    if dtype == torch.float32:
        return Tile(16, 16, 8, 1)
    return Tile(128, 64, 8, 3) if head_dim <= 128 else Tile(64, 64, 8, 2)
