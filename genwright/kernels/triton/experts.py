"""Routing of a mixture of experts: the router, the choice of each token's experts, and the sum of their outputs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit


@jit
def _norm_router(x, norm, weight, normed, logits, dim, experts, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    # Program (expert, token); the programs of expert 0 store the norm.
    expert, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK)
    w = tl.load(weight + expert.to(tl.int64) * dim + i, i < dim, 0.0)
    gain = tl.load(norm + i, i < dim, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dtype: tl.constexpr = x.dtype.element_ty
    values = tl.load(x + row * dim + i, i < dim, 0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
    y = ((values * factor).to(dtype).to(tl.float32) * gain).to(dtype)
    if expert == 0:
        tl.store(normed + row * dim + i, y, i < dim)
    tl.store(logits + row * experts + expert, tl.sum(y.to(tl.float32) * w, 0))


@jit
def _open_groups(
    choice, e, SIZE: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    # Whether each expert is in one of the best groups; of equal groups, the first ones are the best.
    g = tl.arange(0, BLOCK_G)
    rank = tl.full([BLOCK_G], float("-inf"), tl.float32)
    for group in tl.static_range(GROUPS):
        own = tl.where(e // SIZE == group, choice, float("-inf"))
        value = tl.max(own, 0)
        if BIAS:  # DeepSeek-V3: the sum of the best two
            first = tl.min(tl.where(own == value, e, BLOCK), 0)
            value += tl.max(tl.where(e == first, float("-inf"), own), 0)
        rank = tl.where(g == group, value, rank)
    inside = tl.zeros([BLOCK], tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        best = tl.min(tl.where((rank == tl.max(rank, 0)) & (g < GROUPS), g, GROUPS - 1), 0)
        inside = tl.where(e // SIZE == best, 1, inside)
        rank = tl.where(g == best, float("-inf"), rank)
    return inside > 0


@jit
def _route(
    logits, bias, shares, ids, experts, scale, epsilon,
    SIGMOID: tl.constexpr, BIAS: tl.constexpr, NORMALISE: tl.constexpr,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_G: tl.constexpr, PLACES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, e, places = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), tl.arange(0, PLACES)
    x = tl.load(logits + row * experts + e, e < experts, float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        scores = tl.exp(x - tl.max(x, 0))
        scores = scores / tl.sum(scores, 0)
    choice = scores
    if BIAS:
        choice += tl.load(bias + e, e < experts, 0.0)
    choice = tl.where(e < experts, choice, float("-inf"))
    if GROUPS > 1:
        inside = _open_groups(choice, e, SIZE, GROUPS, TOP_GROUPS, BIAS, BLOCK, BLOCK_G)
        choice = tl.where(inside, choice, float("-inf"))
    chosen, share = tl.zeros([PLACES], tl.int64), tl.zeros([PLACES], tl.float32)
    for place in tl.static_range(TOP_K):
        best = tl.min(tl.where(choice == tl.max(choice, 0), e, experts), 0)  # the lowest id of equal scores
        best = tl.minimum(best, experts - 1)  # NaN scores match nothing; any valid expert will do
        chosen = tl.where(places == place, best, chosen)
        share = tl.where(places == place, tl.sum(tl.where(e == best, scores, 0.0), 0), share)
        choice = tl.where(e == best, float("-inf"), choice)
    if NORMALISE:
        share = share / (tl.sum(share, 0) + epsilon)
    tl.store(ids + row * TOP_K + places, chosen, places < TOP_K)
    tl.store(shares + row * TOP_K + places, share * scale, places < TOP_K)


@jit
def _mix(y, shares, base, out, dim, TOP_K: tl.constexpr, BASE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if BASE:
        total += tl.load(base + row * dim + i, i < dim, 0.0).to(tl.float32)
    for place in tl.static_range(TOP_K):
        share = tl.load(shares + row * TOP_K + place)
        total += share * tl.load(y + (row * TOP_K + place) * dim + i, i < dim, 0.0).to(tl.float32)
    tl.store(out + row * dim + i, total.to(out.dtype.element_ty), i < dim)


def norm_router(x: Tensor, norm: Tensor, weight: Tensor, eps: float, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """RMSNorm of few tokens [tokens, dim], and the router's logits for it: weight [experts, dim] in float32."""
    (tokens, dim), experts = x.shape, len(weight)
    assert x.is_contiguous() and weight.is_contiguous() and weight.dtype == torch.float32
    normed, logits = torch.empty_like(x), torch.empty(tokens, experts, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(dim)
    _norm_router[(experts, tokens)](
        x, norm, weight, normed, logits, dim, experts, eps,
        BLOCK=block, PDL=pdl, num_warps=min(max(block // 512, 1), 16), enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return normed, logits


def route(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    *,
    sigmoid: bool,
    normalise: bool,
    scale: float,
    groups: int = 1,
    top_groups: int = 1,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """`text.ops.moe.route`: logits [tokens, experts] in float32. Of equal scores, the lowest ids are chosen."""
    tokens, experts = logits.shape
    assert logits.is_contiguous() and logits.dtype == torch.float32
    shares = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, top_k, dtype=torch.int64, device=logits.device)
    _route[(tokens,)](
        logits, logits if bias is None else bias, shares, ids, experts, scale, 1e-20 if sigmoid else 0.0,
        SIGMOID=sigmoid, BIAS=bias is not None, NORMALISE=normalise, SIZE=experts // groups, GROUPS=groups,
        TOP_GROUPS=top_groups, TOP_K=top_k, BLOCK=triton.next_power_of_2(experts),
        BLOCK_G=triton.next_power_of_2(groups), PLACES=triton.next_power_of_2(top_k),
        PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return shares, ids


def mix(y: Tensor, shares: Tensor, base: Tensor | None = None, pdl: bool = False) -> Tensor:
    """base + sum_k shares[t, k] y[t, k], in float32: y [tokens, top_k, dim] to [tokens, dim]."""
    tokens, top_k, dim = y.shape
    assert y.is_contiguous() and shares.is_contiguous() and (base is None or base.is_contiguous())
    out = torch.empty(tokens, dim, dtype=y.dtype, device=y.device)
    block = 512
    _mix[(tokens, triton.cdiv(dim, block))](
        y, shares, y if base is None else base, out, dim,
        TOP_K=top_k, BASE=base is not None, BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out
