"""Mixtures of experts: which experts a token visits, and their outputs."""

from collections.abc import Callable

import torch
from torch.nn.functional import grouped_mm, silu

from genwright.quant.packed import Packed, Weight
from genwright.text.config import Moe

FEW = 64  # tokens: a decoding step's
Product = Callable[[torch.Tensor, Weight], torch.Tensor]  # x W^T of a backend
SLICE = 32  # pairs of token and expert whose weights are gathered at a time


def route(logits: torch.Tensor, bias: torch.Tensor | None, moe: Moe) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts and their weights, [tokens, top_k] both, of float32 logits [tokens, experts]."""
    scores = logits.softmax(dim=-1) if moe.scores == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    if moe.groups > 1:
        grouped = choice.unflatten(1, (moe.groups, -1))
        # DeepSeek-V2 ranks groups by their best expert, V3, which has the bias, by the sum of their best two.
        rank = grouped.amax(dim=-1) if bias is None else grouped.topk(2, dim=-1).values.sum(dim=-1)
        closed = torch.ones_like(rank, dtype=torch.bool).scatter_(1, rank.topk(moe.top_groups, dim=-1).indices, False)
        choice = grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)
    ids = choice.topk(moe.top_k, dim=-1).indices
    shares = scores.gather(1, ids)
    if moe.normalise:
        shares = shares / (shares.sum(dim=-1, keepdim=True) + (1e-20 if moe.scores == "sigmoid" else 0.0))
    return shares * moe.scale, ids


def run_experts(x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight, product: Product) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)) of each token's experts, [tokens, top_k, dim].

    x [tokens, dim], ids [tokens, top_k], gate_up [experts, 2 * ffn_dim, dim], down [experts, dim, ffn_dim]
    """
    flat = ids.flatten()
    order = flat.argsort(stable=True)  # pairs of token and expert, by expert
    pairs = x[order // ids.shape[1]]
    if isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor) and _groupable(gate_up, down):
        y = _grouped(pairs, flat, gate_up, down)
    elif len(x) <= FEW and x.device.type != "cpu":
        parts = zip(pairs.split(SLICE), flat[order].split(SLICE), strict=True)
        y = torch.cat([_gathered(rows, gate_up[experts], down[experts]) for rows, experts in parts])
    else:
        y = _one_by_one(pairs, flat, gate_up, down, product)
    return torch.empty_like(y).index_copy_(0, order, y).view(*ids.shape, y.shape[1])


def _grouped(x: torch.Tensor, ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Rows by expert in one product each; where an expert's rows end stays on the device."""
    ends = torch.zeros(len(gate_up), dtype=torch.int32, device=x.device)
    ends = ends.scatter_add(0, ids, torch.ones_like(ids, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
    gate, up = grouped_mm(x, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    return grouped_mm(silu(gate) * up, down.transpose(1, 2), offs=ends)


def _gathered(x: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
    """Each row by weights of its own: x [pairs, dim], gate_up [pairs, 2 * ffn_dim, dim]."""
    gate, up = torch.bmm(_dense(gate_up, x.dtype), x[..., None]).squeeze(-1).chunk(2, dim=-1)
    return torch.bmm(_dense(down, x.dtype), (silu(gate) * up)[..., None]).squeeze(-1)


def _one_by_one(x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight, product: Product) -> torch.Tensor:
    """Rows by expert, one after the other: on a CPU, and for prompts, whose packed weights are widened one by one."""
    y, first = torch.empty_like(x), 0
    for expert, count in enumerate(ids.bincount(minlength=gate_up.shape[0]).tolist()):
        if count:
            rows = slice(first, first + count)
            gate, up = product(x[rows], gate_up[expert]).chunk(2, dim=-1)
            y[rows] = product(silu(gate) * up, down[expert])
            first += count
    return y


def weighted_sum(y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """sum_k shares[t, k] y[t, k], in float32: y [tokens, top_k, dim]."""
    return torch.bmm(shares[:, None], y.float()).squeeze(1).to(y.dtype)


def _dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    return weight.dequantize(dtype) if isinstance(weight, Packed) else weight


def _groupable(*weights: torch.Tensor) -> bool:
    """Whether torch has a grouped product for them: rows at multiples of 16 bytes, and on a GPU in bfloat16."""
    aligned = all(size * w.itemsize % 16 == 0 for w in weights for size in w.shape[1:])
    return aligned and all(w.device.type == "cpu" or w.dtype == torch.bfloat16 for w in weights)
