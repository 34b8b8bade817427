"""Queries of absorbed latent attention: RoPE, the up-projection of keys and the write to the cache, in one launch."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit


@dataclass(frozen=True)
class LatentShape:
    """The sizes of latent attention on one rank."""

    heads: int
    nope: int  # channels of a head's query and key without RoPE
    rope: int  # with RoPE
    value: int
    rank: int  # channels of the latent
    interleaved: bool  # neighbouring channels rotate together, not halves

    def options(self) -> dict[str, Any]:
        """Compile-time options that several kernels share."""
        return {"HEADS": self.heads, "NOPE": self.nope, "VALUE": self.value, "RANK": self.rank}


@jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["positions", "slots"])
def _absorb(
    q, kv, kv_norm, kv_b, cos, sin, positions, slots, latents, queries, tokens, eps, q_stride, kv_stride,
    HEADS: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, RANK: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_RANK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (head, part of the latent's channels, tile of tokens); the program after the last head writes the cache.
    WIDTH: tl.constexpr = RANK + ROPE
    HALF: tl.constexpr = ROPE // 2
    dtype: tl.constexpr = q.dtype.element_ty
    head, part = tl.program_id(0), tl.program_id(1)
    t = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    n, c, d = tl.arange(0, BLOCK_N), part * BLOCK_C + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_H)
    first = tl.minimum(head, HEADS - 1) * (NOPE + VALUE)
    key = tl.load(kv_b + (first + n)[:, None] * RANK + c[None, :], (n < NOPE)[:, None] & (c < RANK)[None, :], 0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    live = t < tokens
    row = t.to(tl.int64)
    if head < HEADS:
        x = q + row[:, None] * q_stride + head * (NOPE + ROPE)
        nope = tl.load(x + n[None, :], live[:, None] & (n < NOPE)[None, :], 0.0)
        to = queries + (row * HEADS + head)[:, None] * WIDTH
        absorbed = tl.dot(nope, key, input_precision="ieee")
        tl.store(to + c[None, :], absorbed.to(dtype), live[:, None] & (c < RANK)[None, :])
        x += NOPE
        to += RANK
    else:
        x = kv + row[:, None] * kv_stride + RANK
        slot = tl.load(slots + t, live, -1)
        live = slot >= 0  # padding rows have a negative slot
        to = latents + slot[:, None] * WIDTH + RANK
        if part == 0:
            r = tl.arange(0, BLOCK_RANK)
            inside = live[:, None] & (r < RANK)[None, :]
            latent = tl.load(x - RANK + r[None, :], inside, 0.0).to(tl.float32)
            gain = tl.load(kv_norm + r, r < RANK, 0.0).to(tl.float32)
            # Rounded where text/ops/norm.py rounds.
            normed = (latent * tl.rsqrt(tl.sum(latent * latent, 1) / RANK + eps)[:, None]).to(dtype).to(tl.float32)
            tl.store(to - RANK + r[None, :], (normed * gain[None, :]).to(dtype), inside)
    if part == 0:
        inside = live[:, None] & (d < HALF)[None, :]
        i1 = 2 * d if INTERLEAVED else d
        i2 = 2 * d + 1 if INTERLEAVED else d + HALF
        x1 = tl.load(x + i1[None, :], inside, 0.0).to(tl.float32)
        x2 = tl.load(x + i2[None, :], inside, 0.0).to(tl.float32)
        angle = tl.load(positions + t, live, 0)[:, None] * HALF + d[None, :]
        cosine, sine = tl.load(cos + angle, inside, 0.0), tl.load(sin + angle, inside, 0.0)
        tl.store(to + d[None, :], (x1 * cosine - x2 * sine).to(dtype), inside)
        tl.store(to + HALF + d[None, :], (x2 * cosine + x1 * sine).to(dtype), inside)


def absorb(
    q: Tensor,
    kv: Tensor,
    kv_norm: Tensor,
    kv_b: Tensor,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    slots: Tensor,
    latents: Tensor,
    eps: float,
    shape: LatentShape,
    pdl: bool = False,
    deterministic: bool = False,
) -> Tensor:
    """Write each token's latent and rotated key to its slot, and return the queries of latents.

    If `deterministic`, tiles do not depend on the number of tokens.

    q [tokens, heads * (nope + rope)], kv [tokens, rank + rope], kv_b [heads * (nope + value), rank], cos and sin of
    every position [context, 1, rope / 2] in float32, positions and slots [tokens], latents [pages, PAGE, rank + rope].
    A negative slot is not written. Returns [tokens, heads, rank + rope].
    """
    assert q.stride(1) == 1 and kv.stride(1) == 1 and kv_b.is_contiguous() and latents.is_contiguous()
    tokens, width = len(q), shape.rank + shape.rope
    queries = q.new_empty(tokens, shape.heads, width)
    narrow = tokens <= 8 and not deterministic  # for more programs
    rows, channels = 16, min(64 if narrow else 128, block_of(shape.rank))
    _absorb[(shape.heads + 1, triton.cdiv(shape.rank, channels), triton.cdiv(tokens, rows))](
        q, kv, kv_norm, kv_b, *tables, positions, slots, latents, queries, tokens, eps, q.stride(0), kv.stride(0),
        **shape.options(), ROPE=shape.rope, INTERLEAVED=shape.interleaved, BLOCK_T=rows, BLOCK_N=block_of(shape.nope),
        BLOCK_H=block_of(shape.rope // 2), BLOCK_C=channels, BLOCK_RANK=block_of(shape.rank), PDL=pdl,
        num_warps=4, launch_pdl=pdl, enable_fp_fusion=False,  # PyTorch rounds products before it adds them
    )  # fmt: skip
    return queries


def block_of(size: int) -> int:
    """The block that holds so many rows or columns: a power of two, and at least what `tl.dot` needs."""
    return max(16, int(triton.next_power_of_2(size)))
