"""Mixture of experts: the router, the experts' products, and the weighted sum of their outputs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, silu

from genwright.quant.packed import Packed, Weight
from genwright.text.config import Moe

MAX_GATHERED_TOKENS = 64  # of a step that gathers a copy of the weights for each pair of token and expert
Product = Callable[[Tensor, Weight], Tensor]  # a backend's x W^T
SLICE = 32  # pairs of token and expert whose weights are gathered at a time


def route(logits: Tensor, bias: Tensor | None, moe: Moe) -> tuple[Tensor, Tensor]:
    """Routing weights and ids of each token's experts, both [tokens, top_k], from float32 logits [tokens, experts]."""
    scores = logits.softmax(dim=-1) if moe.scores == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    if moe.groups > 1:
        grouped = choice.unflatten(1, (moe.groups, -1))
        # DeepSeek-V2 ranks groups by their best expert. V3, which has the bias, ranks them by the sum of the best two.
        rank = grouped.amax(dim=-1) if bias is None else grouped.topk(2, dim=-1).values.sum(dim=-1)
        excluded = torch.ones_like(rank, dtype=torch.bool).scatter_(1, rank.topk(moe.top_groups, dim=-1).indices, False)
        choice = grouped.masked_fill(excluded[..., None], float("-inf")).flatten(1)
    ids = choice.topk(moe.top_k, dim=-1).indices
    topk_weights = scores.gather(1, ids)
    if moe.normalise:
        eps = 1e-20 if moe.scores == "sigmoid" else 0.0
        topk_weights = topk_weights / (topk_weights.sum(dim=-1, keepdim=True) + eps)
    return topk_weights * moe.scale, ids


def run_experts(x: Tensor, ids: Tensor, gate_up: Weight, down: Weight, product: Product) -> Tensor:
    """down(silu(gate(x)) * up(x)) of each token's experts, [tokens, top_k, dim].

    x [tokens, dim], ids [tokens, top_k], gate_up [experts, 2 * ffn_dim, dim], down [experts, dim, ffn_dim]
    """
    flat = ids.flatten()
    order = flat.argsort(stable=True)  # pairs of token and expert, by expert
    pairs = x[order // ids.shape[1]]
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor) and _groupable(gate_up, down):
        y = _grouped(pairs, flat, gate_up, down)
    elif len(x) <= MAX_GATHERED_TOKENS and x.device.type != "cpu":
        parts = zip(pairs.split(SLICE), flat[order].split(SLICE), strict=True)
        y = torch.cat([_gathered(rows, gate_up[experts], down[experts]) for rows, experts in parts])
    else:
        y = _one_by_one(pairs, flat, gate_up, down, product)
    return torch.empty_like(y).index_copy_(0, order, y).view(*ids.shape, y.shape[1])


def _grouped(x: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One grouped product for all experts; the offsets of each expert's rows stay on the device."""
    ends = torch.zeros(len(gate_up), dtype=torch.int32, device=x.device)
    ends = ends.scatter_add(0, ids, torch.ones_like(ids, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
    gate, up = grouped_mm(x, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    return grouped_mm(silu(gate) * up, down.transpose(1, 2), offs=ends)


def _gathered(x: Tensor, gate_up: Weight, down: Weight) -> Tensor:
    """One batched product with gathered weights: x [pairs, dim], gate_up [pairs, 2 * ffn_dim, dim]."""
    gate, up = torch.bmm(dense(gate_up, x.dtype), x[..., None]).squeeze(-1).chunk(2, dim=-1)
    return torch.bmm(dense(down, x.dtype), (silu(gate) * up)[..., None]).squeeze(-1)


def _one_by_one(x: Tensor, ids: Tensor, gate_up: Weight, down: Weight, product: Product) -> Tensor:
    """One product per expert: on a CPU, and for prompts, so that packed experts are unpacked one at a time."""
    y, first = torch.empty_like(x), 0
    for expert, count in enumerate(ids.bincount(minlength=gate_up.shape[0]).tolist()):
        if count:
            rows = slice(first, first + count)
            gate, up = product(x[rows], gate_up[expert]).chunk(2, dim=-1)
            y[rows] = product(silu(gate) * up, down[expert])
            first += count
    return y


def weighted_sum(y: Tensor, topk_weights: Tensor) -> Tensor:
    """sum_k topk_weights[t, k] y[t, k] in float32, with y [tokens, top_k, dim]."""
    return torch.bmm(topk_weights[:, None], y.float()).squeeze(1).to(y.dtype)


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight as a plain tensor."""
    return weight.dequantize(dtype) if isinstance(weight, Packed) else weight


def _groupable(*weights: Tensor) -> bool:
    """Whether torch's grouped product takes them: rows must be multiples of 16 bytes and, on a GPU, bfloat16."""
    aligned = all(size * w.itemsize % 16 == 0 for w in weights for size in w.shape[1:])
    return aligned and all(w.device.type == "cpu" or w.dtype == torch.bfloat16 for w in weights)
