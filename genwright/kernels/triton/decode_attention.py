"""Decode attention: one or a few queries per sequence over the paged cache, split along the sequence, in one launch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE
from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.pages import elements, packing
from genwright.kernels.triton.prefill_attention import Tile, attend_block, launch_options

PROGRAMS = 528  # upper limit of programs per launch: 4 per multiprocessor of a Hopper GPU


@jit
def _join(
    maxima, sums, mixed, first_part, parts, d,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    # Merge the softmax sums [R] and weighted values [R, D] of all splits, BLOCK_S of them at a time.
    r = tl.arange(0, BLOCK_R)
    m = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, parts, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        at = (first_part + s)[:, None] * ROWS + r[None, :]
        valid = (s < parts)[:, None] & (r < ROWS)[None, :]
        # .cg bypasses the L1 cache, which is not coherent with writes of other multiprocessors.
        part_m = tl.load(maxima + at, valid, float("-inf"), cache_modifier=".cg")
        part_total = tl.load(sums + at, valid, 0.0, cache_modifier=".cg")
        cell = at[:, :, None] * HEAD_DIM + d[None, None, :]
        part = tl.load(mixed + cell, valid[:, :, None] & (d < HEAD_DIM)[None, None, :], 0.0, cache_modifier=".cg")
        new_m = tl.maximum(m, tl.max(part_m, 0))
        base = tl.where(new_m == float("-inf"), 0.0, new_m)
        weight = tl.exp2(part_m - base[None, :])
        shrink = tl.exp2(m - base)
        total = total * shrink + tl.sum(part_total * weight, 0)
        acc = acc * shrink[:, None] + tl.sum(part * weight[:, :, None], 0)
        m = new_m
    return total, acc


# One binary for every context length, and for sequences after any number of others.
@jit(
    do_not_specialize=["window", "table_stride", "table_width"],
    do_not_specialize_on_alignment=["page_table", "lengths"],
)
def _decode(
    q, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums, page_table, lengths, out,
    maxima, sums, mixed, arrivals, scale, window, table_stride, table_width,
    KV_HEADS: tl.constexpr, SHARE: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, JOIN_R: tl.constexpr, JOIN_S: tl.constexpr,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (kv head, split, sequence) takes every splits-th block of keys, for rows [QUERIES, SHARE] of that kv head.
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    ROWS: tl.constexpr = SHARE * QUERIES
    PER_PAGE: tl.constexpr = PAGE // BLOCK_K
    kv_head, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    length = tl.load(lengths + b).to(tl.int32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - QUERIES - window + 1, 0) // BLOCK_K
    table = page_table + b.to(tl.int64) * table_stride
    page = tl.load(table + tl.minimum((first + split) // PER_PAGE, table_width - 1))
    blocks = tl.cdiv(length, BLOCK_K)
    used = tl.maximum(tl.minimum(blocks - first, splits), 1)
    # No page is negative; testing it here makes the loads of the page and the length overlap.
    if (split >= used) | (page < 0):
        return

    r = tl.arange(0, BLOCK_R)
    d = elements(HEAD_DIM, BLOCK_D, BITS)
    row = ((b * QUERIES + r // SHARE) * KV_HEADS + kv_head) * SHARE + r % SHARE
    at = row.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
    inside = (r < ROWS)[:, None] & (d < HEAD_DIM)[None, :]
    queries = tl.load(q + at, inside, 0.0)
    position = length - QUERIES + r // SHARE
    m = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for block in range(first + split, blocks, splits):
        next_page = tl.load(table + tl.minimum((block + splits) // PER_PAGE, table_width - 1))
        # fmt: off
        m, total, acc = attend_block(
            queries, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums, page,
            block, kv_head, position, length, m, total, acc, scale, window,
            KV_HEADS, HEAD_DIM, PAGE, BLOCK_K, BLOCK_D, BITS, True, WINDOW,
        )
        # fmt: on
        page = next_page

    if used == 1:
        tl.store(out + at, (acc / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty), inside)
        return
    pair = b * KV_HEADS + kv_head
    part = (pair * splits + split) * ROWS + r
    tl.store(maxima + part, m, r < ROWS)
    tl.store(sums + part, total, r < ROWS)
    tl.store(mixed + part[:, None] * HEAD_DIM + d[None, :], acc, inside)
    tl.debug_barrier()  # all threads must have stored their part before one of them signals arrival
    if tl.atomic_add(arrivals + pair, 1, sem="acq_rel") < used - 1:
        return

    # The last program to arrive merges the parts and resets the counter.
    tl.store(arrivals + pair, 0)
    total, acc = _join(maxima, sums, mixed, pair * splits, used, d, ROWS, HEAD_DIM, BLOCK_D, JOIN_R, JOIN_S)
    r = tl.arange(0, JOIN_R)
    row = ((b * QUERIES + r // SHARE) * KV_HEADS + kv_head) * SHARE + r % SHARE
    at = row.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
    inside = (r < ROWS)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + at, (acc / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty), inside)


@dataclass(frozen=True)
class DecodeScratch:
    """Partial results of the programs that split a sequence; consecutive launches on a stream reuse it."""

    maxima: Tensor
    sums: Tensor
    mixed: Tensor
    arrivals: Tensor  # zero between launches

    @staticmethod
    def allocate(rows: int, head_dim: int, device: torch.device) -> "DecodeScratch":
        """`rows` is the maximum of queries times query heads per key-value head."""
        maxima, sums = torch.empty(2, PROGRAMS * rows, dtype=torch.float32, device=device)
        mixed = torch.empty(PROGRAMS * rows, head_dim, dtype=torch.float32, device=device)
        return DecodeScratch(maxima, sums, mixed, torch.zeros(PROGRAMS, dtype=torch.int32, device=device))


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    queries: int,
    scale: float,
    window: int | None,
    scratch: DecodeScratch,
    scales: Mapping[str, Tensor] | None = None,
    tile: Tile | None = None,
    programs: int = PROGRAMS,
    pdl: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of each sequence's last `queries` tokens; zeros where a length is 0.

    q [tokens, heads, head_dim] to [tokens, heads * head_dim], caches [pages, PAGE, kv_heads, head_dim], page_table
    [sequences, width], lengths [sequences] including these tokens. Lengths are only read on the device, so one captured
    CUDA graph works for every length that fits the page table. `scales` are the tensors of a quantized cache.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    sequences, share = tokens // queries, heads // kv_heads
    rows = share * queries
    tile = tile or decode_tile(head_dim, q.dtype)
    width = page_table.shape[1]
    splits = max(1, min(width * PAGE // tile.keys, min(programs, PROGRAMS) // (sequences * kv_heads)))
    assert q.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous() and page_table.stride(1) == 1
    assert splits == 1 or scratch.mixed.numel() >= sequences * kv_heads * splits * rows * head_dim
    out = q.new_empty(tokens, heads * head_dim) if out is None else out
    options, join_rows = launch_options(q, k_cache, window, tile, pdl), triton.next_power_of_2(rows)
    _decode[(kv_heads, splits, sequences)](
        q, k_cache, v_cache, *packing(scales), page_table, lengths, out,
        scratch.maxima, scratch.sums, scratch.mixed, scratch.arrivals,
        scale * math.log2(math.e), window or 0, page_table.stride(0), width,
        SHARE=share, QUERIES=queries, BLOCK_R=max(16, join_rows), JOIN_R=join_rows,
        JOIN_S=max(1, min(16, 4096 // (join_rows * options["BLOCK_D"]))), **options,
    )  # fmt: skip
    return out


def decode_tile(head_dim: int, dtype: torch.dtype) -> Tile:
    """Keys per block such that several programs fit in shared memory; smaller for float32, which uses registers."""
    if dtype == torch.float32:
        return Tile(1, 16, 4, 2)
    return Tile(1, 64 if head_dim <= 128 else 32, 4, 3)
