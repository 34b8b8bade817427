"""The steps between the fused QKV product and attention: norms of q and k, RoPE, and the write to the paged cache."""

from collections.abc import Mapping

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.kernels.triton.pages import bits_of, packing, store_rows

BLOCK_H = 4  # heads per program


@jit(do_not_specialize_on_alignment=["positions", "slots"])  # of the rows after any number of others
def _rope_write(
    qkv, cos, sin, positions, slots, q, k_cache, v_cache, k_scales, v_scales, k_minimums, v_minimums,
    q_norm, k_norm, eps, row_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF_BLOCK: tl.constexpr,
    BLOCK_H: tl.constexpr, BITS: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # A token has programs for the heads of q, then of k, then of v.
    HALF: tl.constexpr = HEAD_DIM // 2
    Q_PROGRAMS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    KV_PROGRAMS: tl.constexpr = (KV_HEADS + BLOCK_H - 1) // BLOCK_H
    token, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    is_q, is_v = program < Q_PROGRAMS, program >= Q_PROGRAMS + KV_PROGRAMS
    part_program = tl.where(is_q, 0, tl.where(is_v, Q_PROGRAMS + KV_PROGRAMS, Q_PROGRAMS))
    part_head = tl.where(is_q, 0, tl.where(is_v, HEADS + KV_HEADS, HEADS))
    h = (program - part_program) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, HALF_BLOCK)
    inside = (h < tl.where(is_q, HEADS, KV_HEADS))[:, None] & (d < HALF)[None, :]
    dtype: tl.constexpr = qkv.dtype.element_ty
    at = qkv + token * row_stride + (part_head + h)[:, None] * HEAD_DIM + d[None, :]
    x1 = tl.load(at, inside, 0.0).to(tl.float32)
    x2 = tl.load(at + HALF, inside, 0.0).to(tl.float32)
    slot = tl.load(slots + token)
    if NORM:
        if is_q:
            w1 = tl.load(q_norm + d, d < HALF, 0.0).to(tl.float32)
            w2 = tl.load(q_norm + HALF + d, d < HALF, 0.0).to(tl.float32)
        else:
            w1 = tl.load(k_norm + d, d < HALF, 0.0).to(tl.float32)
            w2 = tl.load(k_norm + HALF + d, d < HALF, 0.0).to(tl.float32)
        # Rounded where text/ops/norm.py rounds.
        mean = (tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / HEAD_DIM
        factor = tl.rsqrt(mean + eps)[:, None]
        normed1 = ((x1 * factor).to(dtype).to(tl.float32) * w1[None, :]).to(dtype).to(tl.float32)
        normed2 = ((x2 * factor).to(dtype).to(tl.float32) * w2[None, :]).to(dtype).to(tl.float32)
        x1, x2 = tl.where(is_v, x1, normed1), tl.where(is_v, x2, normed2)
    if ROPE:
        angle = tl.load(positions + token) * HALF + d
        c = tl.load(cos + angle, d < HALF, 0.0)[None, :]
        s = tl.load(sin + angle, d < HALF, 0.0)[None, :]
        rotated1, rotated2 = x1 * c - x2 * s, x2 * c + x1 * s
        x1, x2 = tl.where(is_v, x1, rotated1), tl.where(is_v, x2, rotated2)

    if is_q:
        to = q + (token * HEADS + h[:, None]) * HEAD_DIM + d[None, :]
        tl.store(to, x1.to(dtype), inside)
        tl.store(to + HALF, x2.to(dtype), inside)
    elif slot >= 0:  # padding rows have a negative slot
        x1, x2 = x1.to(dtype).to(tl.float32), x2.to(dtype).to(tl.float32)
        row = slot * KV_HEADS + h
        if is_v:
            store_rows(v_cache, v_scales, v_minimums, row, x1, x2, inside, HEAD_DIM, BLOCK_H, HALF_BLOCK, BITS)
        else:
            store_rows(k_cache, k_scales, k_minimums, row, x1, x2, inside, HEAD_DIM, BLOCK_H, HALF_BLOCK, BITS)


def rope_write(
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    positions: Tensor,
    scales: Mapping[str, Tensor] | None = None,
    pdl: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise and rotate q and k, write k and v to their slots (a negative slot is skipped), and return q.

    qkv [tokens, (heads + 2 kv_heads) * head_dim], cos and sin [context, 1, head_dim / 2] in float32, slots and
    positions [tokens], caches [pages, PAGE, kv_heads, head_dim], with `scales` if quantized.
    Returns [tokens, heads, head_dim].
    """
    assert qkv.stride(1) == 1 and k_cache.is_contiguous() and v_cache.is_contiguous()
    q = qkv.new_empty(len(qkv), heads, head_dim) if out is None else out
    _rope_write[(len(qkv), triton.cdiv(heads, BLOCK_H) + 2 * triton.cdiv(kv_heads, BLOCK_H))](
        qkv, cos, sin, positions, slots, q, k_cache, v_cache, *packing(scales), q_norm, k_norm, eps, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        BLOCK_H=BLOCK_H, BITS=bits_of(k_cache), NORM=q_norm is not None, ROPE=cos is not None,
        PDL=pdl, num_warps=1, launch_pdl=pdl,
        enable_fp_fusion=False,  # PyTorch rounds products before it adds them
    )  # fmt: skip
    return q
