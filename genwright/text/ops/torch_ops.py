"""The torch backend: every op in plain PyTorch, on any device. All other backends are tested against it."""

from collections.abc import Callable
from typing import Unpack

import torch
import torch.distributed as dist
from torch.nn import functional as F

from genwright.quant.packed import Packed, Weight
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops import deterministic as fixed
from genwright.text.ops.attention import attend_group, gather
from genwright.text.ops.latent_attention import absorbed, expanded, expanding_is_less, latent_row, rotate_tail
from genwright.text.ops.moe import route, run_experts, weighted_sum
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.protocol import LATENT_EPS, Fused, Ops, Weights
from genwright.text.ops.rope import rotate
from genwright.text.ops.step import QueryGroup, Step


class TorchOps(Ops):
    """`group` is the process group whose ranks share the model; None is one rank."""

    captures = False  # whether every op of a step leaves the host alone, so that a CUDA graph can hold it

    def __init__(self, deterministic: bool = False, group: dist.ProcessGroup | None = None):
        self.deterministic, self.group = deterministic, group
        self.rank = 0 if group is None else dist.get_rank(group)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        if self.group is not None:
            dist.all_reduce(x, group=self.group)
        return x

    def embedding(self, tokens: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        table = weights[name]
        if self.group is None:
            return F.embedding(tokens, table)
        local = tokens - self.rank * len(table)
        here = (local >= 0) & (local < len(table))
        return self.all_reduce(F.embedding(local.clamp(0, len(table) - 1), table) * here[:, None])

    def norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return rms_norm(x, weights[name], eps)

    def layer_norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], weights.get(name), weights.get(f"{name}.bias"), eps)

    def product(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x weight^T + bias: x [tokens, inputs], weight [outputs, inputs]."""
        if self.deterministic:
            return fixed.linear(x, weight, bias)
        return weight.linear(x, bias) if isinstance(weight, Packed) else F.linear(x, weight, bias)

    def fused_linear(
        self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, **fused: Unpack[Fused]
    ) -> torch.Tensor | None:
        """residual + norm(x) weight^T + bias in one kernel, or None.

        A backend that has no fused kernel returns None; the op is then computed in separate steps.
        """
        return None

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        return self.product(x, weights[name], weights.get(f"{name}.bias"))

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        y = self.fused_linear(x, weights[name], bias=weights.get(f"{name}.bias"), norm=weights[norm], eps=eps)
        return self.linear(self.norm(x, weights, norm, eps), weights, name) if y is None else y

    def add_linear(
        self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> torch.Tensor:
        bias = weights.get(f"{name}.bias") if self.rank == 0 else None
        if post_norm:
            whole = self.all_reduce(self.product(x, weights[name], bias))
            return residual + self.norm(whole, weights, post_norm, eps)
        first = residual if self.rank == 0 else None  # so that the sum over ranks has it once
        y = self.fused_linear(x, weights[name], bias=bias, residual=first)
        return self.all_reduce(self.add_product(first, x, weights[name], bias) if y is None else y)

    def add_product(
        self, residual: torch.Tensor | None, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """residual + x W^T + bias on this rank."""
        y = self.product(x, weight, bias)
        return y if residual is None else residual + y

    def add_gated_mlp(
        self,
        x: torch.Tensor,
        weights: Weights,
        norm: str,
        eps: float,
        activation: str = "silu",
        post_norm: str = "",
    ) -> torch.Tensor:
        gated = None
        if activation == "silu":
            bias = weights.get("gate_up.bias")
            gated = self.fused_linear(x, weights["gate_up"], bias=bias, norm=weights[norm], eps=eps, gate=True)
        if gated is None:
            gated = self.gate(self.norm_linear(x, weights, norm, "gate_up", eps), activation)
        return self.add_linear(x, gated, weights, "down", post_norm, eps)

    def add_mlp(self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, activation: str) -> torch.Tensor:
        return self.add_linear(residual, self.activate(self.linear(x, weights, "fc1"), activation), weights, "fc2")

    def add_moe(self, x: torch.Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> torch.Tensor:
        residual, x = x, self.norm(x, weights, norm, eps)
        shares, ids = self.route(x, weights, moe)
        gate_up, down = (weights[f"experts.{name}"].unflatten(0, (moe.experts, -1)) for name in ("gate_up", "down"))
        mixed = self.mix(self.experts(x, ids, gate_up, down), shares)
        if moe.shared_dim:
            gated = self.gate(self.linear(x, weights, "shared.gate_up"), "silu")
            shared = self.linear(gated, weights, "shared.down")
            if moe.shared_gate:
                shared = shared * self.activate(self.linear(x, weights, "shared.gate"), "sigmoid")
            mixed = mixed + shared
        return residual + self.all_reduce(mixed)

    def route(self, x: torch.Tensor, weights: Weights, moe: Moe) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of each token's experts, [tokens, top_k]."""
        logits, bias = self.linear(x.float(), weights, "router"), weights.get("router.correction")
        return fixed.route(logits, bias, moe) if self.deterministic else route(logits, bias, moe)

    def experts(self, x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
        """down(silu(gate(x)) * up(x)) of each token's experts, [tokens, top_k, dim]."""
        if self.deterministic:
            return fixed.experts(x, ids, gate_up, down, self.product)
        return run_experts(x, ids, gate_up, down, self.product)

    def mix(self, y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """sum_k shares[t, k] y[t, k], in float32: y [tokens, top_k, dim]."""
        return fixed.weighted_sum(y, shares) if self.deterministic else weighted_sum(y, shares)

    def activate(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        function = ACTIVATIONS[activation]
        return fixed.by_rows(function, x) if self.deterministic else function(x)

    def gate(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """activation(gate) * up: [tokens, 2 ffn] to [tokens, ffn]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activate(gate, activation) * up

    def rope_attend(
        self, qkv: torch.Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        return self.attend(self.rope_write(qkv, weights, attention, cache, step), attention, cache, step)

    def rope_write(
        self, qkv: torch.Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        """Split the fused projection, rotate q and k, write k and v to their slots, and return q."""
        kv_heads, head_dim = cache.spec.rows["k"]
        split = [qkv.shape[1] // head_dim - 2 * kv_heads, kv_heads]  # the rank's own heads
        qk, v = qkv.view(len(qkv), -1, head_dim).split((sum(split), kv_heads), dim=1)
        if "q_norm" in weights:
            parts = zip(("q_norm", "k_norm"), qk.split(split, dim=1), strict=True)
            qk = torch.cat([rms_norm(part, weights[norm], attention.norm_eps) for norm, part in parts], dim=1)
        if attention.rope is not None:
            qk = rotate(qk, *step.rope(attention.rope))
        q, k = torch.split(qk, split, dim=1)
        for name, rows in (("k", k), ("v", v)):
            cache.write(name, step.slots[cache.group], rows)
        return q

    def attend(self, q: torch.Tensor, attention: Attention, cache: LayerCache, step: Step) -> torch.Tensor:
        """softmax(q k^T * scale) v, causal within each sequence: q [tokens, heads, head_dim]."""
        if self.deterministic:
            return fixed.attend(q, lambda pages: fixed.keys_values(cache, pages), attention, cache, step).flatten(1)
        parts = [self.attend_group(q[group.rows], attention, cache, group, step) for group in step.groups]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def attend_group(
        self, q: torch.Tensor, attention: Attention, cache: LayerCache, group: QueryGroup, step: Step
    ) -> torch.Tensor:
        """The same for sequences of equally many queries."""
        k, v = (gather(cache, name, group, step, q.dtype) for name in ("k", "v"))
        return attend_group(q, k, v, group, step, attention.scale, attention.window)

    def latent_attend(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        weights: Weights,
        mla: Mla,
        attention: Attention,
        cache: LayerCache,
        step: Step,
    ) -> torch.Tensor:
        latent = self.norm(kv[:, : mla.kv_lora_rank], weights, "kv_norm", LATENT_EPS)
        cos_sin = step.rope(attention.rope or "")
        cache.write("latent", step.slots[cache.group], latent_row(kv, latent, mla, cos_sin))
        q = rotate_tail(q.unflatten(1, (-1, mla.qk_nope_head_dim + mla.qk_rope_head_dim)), mla, cos_sin)
        if self.deterministic:
            return fixed.latent_attend(q, weights["kv_b"], mla, attention, cache, step).flatten(1)
        parts = []
        for group in step.groups:
            form = expanded if expanding_is_less(group, mla) else absorbed
            latents = gather(cache, "latent", group, step, q.dtype)
            parts.append(form(q[group.rows], weights["kv_b"], latents, mla, group, step, attention.scale))
        return torch.cat(parts).flatten(1)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": torch.sigmoid,
}
