"""The torch backend: every op in plain PyTorch, on any device. The other backends are tested against it."""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from genwright.placement.weight_stream import Arriving
from genwright.quant.packed import Packed, Weight
from genwright.quant.table import PackedTable
from genwright.quant.tiles import Table
from genwright.text.cache.layout import CacheSpec, LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops import deterministic
from genwright.text.ops.attention import attend_group, gather
from genwright.text.ops.latent_attention import absorbed, expanded, latent_row, prefer_expanded, rotate_tail
from genwright.text.ops.moe import route, run_experts, weighted_sum
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.protocol import LATENT_EPS, Fused, Ops, Weights
from genwright.text.ops.rope import rotate
from genwright.text.ops.step import QueryGroup, Step


class TorchOps(Ops):
    """`group` is the process group whose ranks share the model; None means a single rank."""

    capturable = False  # whether a CUDA graph can capture a step: no op of it waits for the host

    def __init__(self, deterministic: bool = False, group: dist.ProcessGroup | None = None):
        self.deterministic, self.group = deterministic, group
        self.rank = 0 if group is None else dist.get_rank(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.group is not None:
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The columns of all ranks next to each other: [rows, columns] to [rows, ranks * columns]."""
        if self.group is None:
            return x
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    def embedding(self, tokens: Tensor, weights: Weights, name: str) -> Tensor:
        table = weights[name]
        if self.group is None:
            return self.look_up(tokens, table)
        local = tokens - self.rank * table.shape[0]
        size = table.shape[0]
        here = (local >= 0) & (local < size)
        return self.all_reduce(self.look_up(local.clamp(0, size - 1), table) * here[:, None])

    def look_up(self, rows: Tensor, table: Tensor | Table | PackedTable) -> Tensor:
        """Some rows of a table."""
        return F.embedding(rows, table) if isinstance(table, Tensor) else table.look_up(rows)

    def norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
        return rms_norm(x, weights[name], eps)

    def layer_norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights.get(name), weights.get(f"{name}.bias"), eps)

    def product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """x weight^T + bias, with x [tokens, inputs] and weight [outputs, inputs]."""
        if self.deterministic:
            return deterministic.linear(x, weight, bias)
        return weight.linear(x, bias) if isinstance(weight, Packed) else F.linear(x, weight, bias)

    def fused_linear(
        self, x: Tensor, weight: Weight, bias: Tensor | None = None, **fused: Unpack[Fused]
    ) -> Tensor | None:
        """residual + norm(x) weight^T + bias in one kernel, or None.

        A backend that has no fused kernel returns None; the op is then computed in separate steps.
        """
        return None

    def linear(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        return self.product(x, weights[name], weights.get(f"{name}.bias"))

    def norm_linear(self, x: Tensor, weights: Weights, norm: str, name: str, eps: float) -> Tensor:
        y = self.fused_linear(x, weights[name], bias=weights.get(f"{name}.bias"), norm=weights[norm], eps=eps)
        return self.norm_product(x, weights, norm, name, eps) if y is None else y

    def norm_product(self, x: Tensor, weights: Weights, norm: str, name: str, eps: float) -> Tensor:
        """`norm_linear` where `fused_linear` is None."""
        return self.linear(self.norm(x, weights, norm, eps), weights, name)

    def add_linear(
        self, residual: Tensor, x: Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> Tensor:
        bias = weights.get(f"{name}.bias") if self.rank == 0 else None
        if post_norm:
            whole = self.all_reduce(self.product(x, weights[name], bias))
            return residual + self.norm(whole, weights, post_norm, eps)
        first = residual if self.rank == 0 else None  # the sum over ranks must contain it once
        y = self.fused_linear(x, weights[name], bias=bias, residual=first)
        return self.all_reduce(self.add_product(first, x, weights[name], bias) if y is None else y)

    def add_product(self, residual: Tensor | None, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """residual + x W^T + bias on this rank."""
        y = self.product(x, weight, bias)
        return y if residual is None else residual + y

    def add_gated_mlp(
        self, x: Tensor, weights: Weights, norm: str, eps: float, activation: str = "silu", post_norm: str = ""
    ) -> Tensor:
        gated = None
        if activation == "silu":
            bias = weights.get("gate_up.bias")
            gated = self.fused_linear(x, weights["gate_up"], bias=bias, norm=weights[norm], eps=eps, gate=True)
        if gated is None:
            gate_up = self.norm_linear(x, weights, norm, "gate_up", eps)
            return self.add_gated_product(x, gate_up, weights, activation, post_norm, eps)
        return self.add_linear(x, gated, weights, "down", post_norm, eps)

    def add_gated_product(
        self, residual: Tensor, gate_up: Tensor, weights: Weights, activation: str, post_norm: str, eps: float
    ) -> Tensor:
        """The second half of `add_gated_mlp` where `fused_linear` is None: residual + down(activation(gate) * up)."""
        return self.add_linear(residual, self.gate(gate_up, activation), weights, "down", post_norm, eps)

    def add_mlp(self, residual: Tensor, x: Tensor, weights: Weights, activation: str) -> Tensor:
        return self.add_linear(residual, self.activate(self.linear(x, weights, "fc1"), activation), weights, "fc2")

    def add_moe(self, x: Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> Tensor:
        residual, x = x, self.norm(x, weights, norm, eps)
        topk_weights, ids = self.route(x, weights, moe)
        own = weights["experts.down"].shape[0] // x.shape[1]  # experts of this rank, whole or a part of each
        if own < moe.experts:
            topk_weights, ids = self._own_experts(topk_weights, ids, own)
        if isinstance(weights, Arriving):
            weights.bring_experts(ids)
        gate_up, down = (weights[f"experts.{name}"].unflatten(0, (own, -1)) for name in ("gate_up", "down"))
        output = self.combine(self.experts(x, ids, gate_up, down), topk_weights)
        if moe.shared_dim:
            gated = self.gate(self.linear(x, weights, "shared.gate_up"), "silu")
            shared = self.linear(gated, weights, "shared.down")
            if moe.shared_gate:
                shared = shared * self.activate(self.linear(x, weights, "shared.gate"), "sigmoid")
            output = output + shared
        return residual + self.all_reduce(output)

    def _own_experts(self, topk_weights: Tensor, ids: Tensor, own: int) -> tuple[Tensor, Tensor]:
        """The choices among this rank's experts; those of other ranks become choices of weight 0."""
        ids = ids - self.rank * own
        here = (ids >= 0) & (ids < own)
        return topk_weights * here, ids.clamp(0, own - 1)

    def route(self, x: Tensor, weights: Weights, moe: Moe) -> tuple[Tensor, Tensor]:
        """The routing weights and ids of each token's experts, both [tokens, top_k]."""
        logits, bias = self.linear(x.float(), weights, "router"), weights.get("router.correction")
        return deterministic.route(logits, bias, moe) if self.deterministic else route(logits, bias, moe)

    def experts(self, x: Tensor, ids: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        """down(silu(gate(x)) * up(x)) of each token's experts, [tokens, top_k, dim]."""
        if self.deterministic:
            return deterministic.experts(x, ids, gate_up, down, self.product)
        return run_experts(x, ids, gate_up, down, self.product)

    def combine(self, y: Tensor, topk_weights: Tensor) -> Tensor:
        """sum_k topk_weights[t, k] y[t, k] in float32, with y [tokens, top_k, dim]."""
        return deterministic.weighted_sum(y, topk_weights) if self.deterministic else weighted_sum(y, topk_weights)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        function = ACTIVATIONS[activation]
        return deterministic.by_rows(function, x) if self.deterministic else function(x)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """activation(gate) * up, from [tokens, 2 ffn] to [tokens, ffn]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activate(gate, activation) * up

    def rope_attend(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        return self.attend(self.rope_write(qkv, weights, attention, cache, step), attention, cache, step)

    def rope_write(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        """Split the fused projection, apply norms and RoPE, write k and v to their slots, and return q."""
        q, k, v = self.split_qkv(qkv, weights, attention, cache.spec, step)
        for name, rows in (("k", k), ("v", v)):
            cache.write(name, step.slots[cache.group], rows)
        return q

    def split_qkv(
        self, qkv: Tensor, weights: Weights, attention: Attention, spec: CacheSpec, step: Step
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split the fused projection, and apply norms and RoPE."""
        kv_heads, head_dim = spec.rows["k"]
        split = [qkv.shape[1] // head_dim - 2 * kv_heads, kv_heads]  # heads of this rank
        qk, v = qkv.view(len(qkv), -1, head_dim).split((sum(split), kv_heads), dim=1)
        if "q_norm" in weights:
            parts = zip(("q_norm", "k_norm"), qk.split(split, dim=1), strict=True)
            qk = torch.cat([rms_norm(part, weights[norm], attention.norm_eps) for norm, part in parts], dim=1)
        if attention.rope is not None:
            qk = rotate(qk, *step.rope(attention.rope))
        q, k = torch.split(qk, split, dim=1)
        return q, k, v

    def attend(self, q: Tensor, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        """softmax(q k^T * scale) v, causal within each sequence, with q [tokens, heads, head_dim]."""
        if self.deterministic:
            return deterministic.attend(
                q, lambda pages: deterministic.keys_values(cache, pages), attention, cache, step
            ).flatten(1)
        parts = [self.attend_group(q[group.rows], attention, cache, group, step) for group in step.groups]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def attend_group(self, q: Tensor, attention: Attention, cache: LayerCache, group: QueryGroup, step: Step) -> Tensor:
        """`attend` for sequences with the same number of queries."""
        k, v = (gather(cache, name, group, step, q.dtype) for name in ("k", "v"))
        return attend_group(q, k, v, group, step, attention.scale, attention.window)

    def latent_attend(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, cache: LayerCache, step: Step
    ) -> Tensor:
        q, rows = self.latent_rows(q, kv, weights, mla, attention, step)
        cache.write("latent", step.slots[cache.group], rows)
        if self.deterministic:
            return deterministic.latent_attend(q, weights["kv_b"], mla, attention, cache, step).flatten(1)
        parts = []
        for group in step.groups:
            form = expanded if prefer_expanded(group, mla) else absorbed
            latents = gather(cache, "latent", group, step, q.dtype)
            parts.append(form(q[group.rows], weights["kv_b"], latents, mla, group, step, attention.scale))
        return torch.cat(parts).flatten(1)

    def latent_rows(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, step: Step, first_row: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Queries [tokens, heads, nope + rope] and rows of the cache, with RoPE; q and kv begin at `first_row`."""
        latent = self.norm(kv[:, : mla.kv_lora_rank], weights, "kv_norm", LATENT_EPS)
        cos, sin = step.rope(attention.rope or "")
        cos_sin = cos[first_row:], sin[first_row:]
        q = rotate_tail(q.unflatten(1, (-1, mla.qk_nope_head_dim + mla.qk_rope_head_dim)), mla, cos_sin)
        return q, latent_row(kv, latent, mla, cos_sin)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
}
