"""Routing of a mixture of experts: choose each token's experts, and sum their weighted outputs."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _route(
    logits, bias, shares, ids, experts, scale, epsilon,
    SIGMOID: tl.constexpr, BIAS: tl.constexpr, NORMALISE: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr, PLACES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
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


@triton.jit
def _mix(y, shares, out, dim, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        share = tl.load(shares + row * TOP_K + place)
        total += share * tl.load(y + (row * TOP_K + place) * dim + i, i < dim, 0.0).to(tl.float32)
    tl.store(out + row * dim + i, total.to(out.dtype.element_ty), i < dim)


def route(
    logits: Tensor, bias: Tensor | None, top_k: int, *, sigmoid: bool, normalise: bool, scale: float, pdl: bool = False
) -> tuple[Tensor, Tensor]:
    """`text.ops.moe.route` for experts in one group: logits [tokens, experts] in float32."""
    tokens, experts = logits.shape
    assert logits.is_contiguous() and logits.dtype == torch.float32
    shares = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, top_k, dtype=torch.int64, device=logits.device)
    _route[(tokens,)](
        logits, logits if bias is None else bias, shares, ids, experts, scale, 1e-20 if sigmoid else 0.0,
        SIGMOID=sigmoid, BIAS=bias is not None, NORMALISE=normalise, TOP_K=top_k,
        BLOCK=triton.next_power_of_2(experts), PLACES=triton.next_power_of_2(top_k),
        PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return shares, ids


def mix(y: Tensor, shares: Tensor, pdl: bool = False) -> Tensor:
    """sum_k shares[t, k] y[t, k], in float32: y [tokens, top_k, dim] to [tokens, dim]."""
    tokens, top_k, dim = y.shape
    assert y.is_contiguous() and shares.is_contiguous()
    out = torch.empty(tokens, dim, dtype=y.dtype, device=y.device)
    block = 512
    _mix[(tokens, triton.cdiv(dim, block))](
        y, shares, out, dim, TOP_K=top_k, BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl
    )
    return out
