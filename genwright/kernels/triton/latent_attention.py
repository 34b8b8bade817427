"""Latent attention of decoding sequences in its absorbed form (DeepSeek-V2, section 2.1).

After `latent_queries.py`, one launch splits each sequence, and all heads of a program share the rows that it reads; a
second one joins the splits and applies the up-projection of values.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE
from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.latent_queries import LatentShape, block_of

PROGRAMS = 264  # upper limit of programs per launch that splits sequences: 2 per multiprocessor of a Hopper GPU
MAX_ROWS = 64  # of a tile
MAX_SPLITS = 64  # of a sequence; `_project` reads them all
MAX_SINGLE_TOKENS = 8  # that `_project` multiplies one at a time; more are rows of a tensor core product


@dataclass(frozen=True)
class LatentTile:
    """Tile sizes: rows (queries times heads) per program, keys per block, warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class LatentScratch:
    """Partial results of the programs that split a sequence; consecutive launches on a stream reuse it."""

    maxima: Tensor
    sums: Tensor
    mixed: Tensor

    @staticmethod
    def allocate(rows: int, rank: int, device: torch.device) -> "LatentScratch":
        """`rows` is the number of queries per sequence times heads."""
        count = PROGRAMS * min(rows, MAX_ROWS)
        maxima, sums = torch.empty(2, count, dtype=torch.float32, device=device)
        return LatentScratch(maxima, sums, torch.empty(count, rank, dtype=torch.float32, device=device))


# One binary for every context length, and for sequences after any number of others.
@jit(do_not_specialize=["table_stride", "table_width"], do_not_specialize_on_alignment=["page_table", "lengths"])
def _attend(
    queries, latents, page_table, lengths, maxima, sums, mixed, scale, table_stride, table_width,
    ROWS: tl.constexpr, HEADS: tl.constexpr, ROPE: tl.constexpr, RANK: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_RANK: tl.constexpr,
    SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (tile of rows, split, sequence) takes every splits-th block of keys; a sequence has ROWS / HEADS queries.
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    WIDTH: tl.constexpr = RANK + ROPE
    PER_PAGE: tl.constexpr = PAGE // BLOCK_K
    dtype: tl.constexpr = queries.dtype.element_ty
    split, splits, b = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    length = tl.load(lengths + b).to(tl.int32)
    table = page_table + b.to(tl.int64) * table_stride
    page = tl.load(table + tl.minimum(split // PER_PAGE, table_width - 1))
    blocks = tl.cdiv(length, BLOCK_K)
    # No page is negative; testing it here makes the loads of the page and the length overlap.
    if (split >= tl.maximum(blocks, 1)) | (page < 0):
        return

    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    i, c, d = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_RANK), tl.arange(0, BLOCK_H)
    row = b.to(tl.int64) * ROWS + r
    content = tl.load(queries + row[:, None] * WIDTH + c[None, :], (r < ROWS)[:, None] & (c < RANK)[None, :], 0.0)
    rotary = tl.load(queries + row[:, None] * WIDTH + RANK + d[None, :], (r < ROWS)[:, None] & (d < ROPE)[None, :], 0.0)
    position = length - ROWS // HEADS + r // HEADS
    m = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_RANK], tl.float32)
    for block in range(split, blocks, splits):
        next_page = tl.load(table + tl.minimum((block + splits) // PER_PAGE, table_width - 1))
        key = block * BLOCK_K + i
        live = (key < length)[:, None]
        at = latents + (page * PAGE + block % PER_PAGE * BLOCK_K) * WIDTH + i[:, None] * WIDTH
        latent = tl.load(at + c[None, :], live & (c < RANK)[None, :], 0.0)
        rope_key = tl.load(at + RANK + d[None, :], live & (d < ROPE)[None, :], 0.0)
        scores = tl.dot(rotary, tl.trans(rope_key), input_precision="ieee")
        scores = tl.dot(content, tl.trans(latent), scores, input_precision="ieee")
        scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, 1) * scale)
        base = tl.where(new_m == float("-inf"), 0.0, new_m)  # -inf: the row has seen no key yet
        p = tl.exp2(tl.fma(scores, scale, -base[:, None]))
        shrink = tl.exp2(m - base)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(dtype), latent, acc * shrink[:, None], input_precision="ieee")
        m = new_m
        page = next_page

    inside = (r < ROWS)[:, None] & (c < RANK)[None, :]
    if SPLIT:
        to = row * splits + split
        tl.store(maxima + to, m, r < ROWS)
        tl.store(sums + to, total, r < ROWS)
        tl.store(mixed + to[:, None] * RANK + c[None, :], acc, inside)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(mixed + row[:, None] * RANK + c[None, :], acc.to(dtype), inside)


@jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["lengths"])
def _project(
    maxima, sums, mixed, kv_b, lengths, out, tokens, splits,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, NOPE: tl.constexpr, VALUE: tl.constexpr, RANK: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (head, part of its outputs, tile of tokens). BLOCK_K is that of `_attend`, which used as many splits.
    dtype: tl.constexpr = out.dtype.element_ty
    head, v, c = tl.program_id(0), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_C)
    t = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    weights = kv_b + (head * (NOPE + VALUE) + NOPE + v)[:, None] * RANK + c[None, :]
    value = tl.load(weights, (v < VALUE)[:, None] & (c < RANK)[None, :], 0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    live = t < tokens
    row = t.to(tl.int64) * HEADS + head
    if SPLIT:
        length = tl.load(lengths + t // QUERIES, live, 0).to(tl.int32)
        used = tl.where(live, tl.maximum(tl.minimum(tl.cdiv(length, BLOCK_K), splits), 1), 0)
        most = tl.max(used, 0)
        s = tl.arange(0, BLOCK_S)
        parts = row[:, None] * splits + s[None, :]
        maximum = tl.load(maxima + parts, s[None, :] < used[:, None], float("-inf"))
        top = tl.max(maximum, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        total = tl.sum(tl.load(sums + parts, s[None, :] < used[:, None], 0.0) * tl.exp2(maximum - top[:, None]), 1)
        inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    acc = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
    for start in tl.static_range(0, RANK, BLOCK_C):
        if start > 0:
            value = tl.load(weights + start, (v < VALUE)[:, None] & (start + c < RANK)[None, :], 0.0)
        if SPLIT:
            joined = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
            for first in range(0, most, BLOCK_J):  # several splits at a time, so that their loads overlap
                j = first + tl.arange(0, BLOCK_J)
                valid = j[None, :] < used[:, None]
                at = row[:, None] * splits + j[None, :]
                share = tl.exp2(tl.load(maxima + at, valid, float("-inf")) - top[:, None]) * inverse[:, None]
                inside = valid[:, :, None] & (start + c < RANK)[None, None, :]
                part = tl.load(mixed + at[:, :, None] * RANK + start + c[None, None, :], inside, 0.0)
                joined += tl.sum(share[:, :, None] * part, 1)
            latent = joined.to(dtype)
        else:
            inside = live[:, None] & (start + c < RANK)[None, :]
            latent = tl.load(mixed + row[:, None] * RANK + start + c[None, :], inside, 0.0)
        if BLOCK_T == 1:
            acc += tl.sum(value.to(tl.float32) * latent.to(tl.float32), 1)[None, :]
        else:
            acc = tl.dot(latent, tl.trans(value), acc, input_precision="ieee")
    tl.store(out + row[:, None] * VALUE + v[None, :], acc.to(dtype), live[:, None] & (v < VALUE)[None, :])


def latent_tile(rows: int, dtype: torch.dtype) -> LatentTile:
    """Keys per block such that two programs fit in shared memory; smaller for float32, which uses registers."""
    if dtype == torch.float32:
        return LatentTile(16, 16, 8, 1)
    return LatentTile(16, 32, 4, 3) if rows <= 16 else LatentTile(MAX_ROWS, 32, 8, 2)


def attend(
    queries: Tensor,
    latents: Tensor,
    kv_b: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: float,
    scratch: LatentScratch,
    shape: LatentShape,
    tile: LatentTile | None = None,
    programs: int = PROGRAMS,
    pdl: bool = False,
    out: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Causal attention of each sequence's last tokens to its latents, and the projection of values.

    queries [tokens, heads, rank + rope] of `absorb`, with equally many tokens of each sequence, latents [pages, PAGE,
    rank + rope], page_table [sequences, width], lengths [sequences] including these tokens. Lengths are only read on
    the device. Returns [tokens, heads * value], zeros where a length is 0.

    If `deterministic`, each sequence has one token and is not split, and tiles do not depend on the number of tokens.
    """
    assert queries.is_contiguous() and latents.is_contiguous() and page_table.stride(1) == 1
    tokens, sequences, rank = len(queries), len(lengths), shape.rank
    rows = tokens // sequences * shape.heads
    tile = tile or latent_tile(rows, queries.dtype)
    tiles = triton.cdiv(rows, tile.rows)
    longest = page_table.shape[1] * PAGE // tile.keys
    splits = max(1, min(longest, MAX_SPLITS, min(programs, PROGRAMS) // (sequences * tiles)))
    if deterministic:
        assert tokens == sequences
        splits = 1
    mixed = scratch.mixed if splits > 1 else queries.new_empty(tokens * shape.heads, rank)
    assert splits == 1 or len(mixed) >= tokens * shape.heads * splits
    _attend[(tiles, splits, sequences)](
        queries, latents, page_table, lengths, scratch.maxima, scratch.sums, mixed, scale * math.log2(math.e),
        page_table.stride(0), page_table.shape[1],
        ROWS=rows, HEADS=shape.heads, ROPE=shape.rope, RANK=rank, PAGE=PAGE, BLOCK_K=tile.keys, BLOCK_R=tile.rows,
        BLOCK_H=block_of(shape.rope), BLOCK_RANK=block_of(rank), SPLIT=splits > 1, PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    out = queries.new_empty(tokens, shape.heads * shape.value) if out is None else out
    if tokens <= MAX_SINGLE_TOKENS and not deterministic:
        blocks = {"BLOCK_T": 1, "BLOCK_J": 16, "BLOCK_V": 16, "BLOCK_C": block_of(rank)}
    else:
        blocks = {"BLOCK_T": 16, "BLOCK_J": 4, "BLOCK_V": min(128, block_of(shape.value)), "BLOCK_C": 128}
    _project[(shape.heads, triton.cdiv(shape.value, blocks["BLOCK_V"]), triton.cdiv(tokens, blocks["BLOCK_T"]))](
        scratch.maxima, scratch.sums, mixed, kv_b, lengths, out, tokens, splits,
        **shape.options(), **blocks, QUERIES=tokens // sequences, BLOCK_K=tile.keys,
        BLOCK_S=triton.next_power_of_2(splits), SPLIT=splits > 1, PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return out
