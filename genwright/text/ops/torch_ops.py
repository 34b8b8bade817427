"""The reference backend: the ops that a block is written in, in plain torch, on any device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm, relu, silu

from genwright.kernels.cpu.attention import rope_write
from genwright.kernels.cpu.fused_linear import few_tokens_linear, few_tokens_operand
from genwright.quant.packed import Weight
from genwright.text.cache.layout import LayerCache
from genwright.text.config import ModelConfig
from genwright.text.ops.attention import attend
from genwright.text.ops.latent_attention import attend_latent, latent_row, rotate_tail
from genwright.text.ops.moe import route, run_experts
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.rope import rotate
from genwright.text.ops.step import Step

Weights = Mapping[str, Any]  # tensors; of matrices also packed weights
LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever the others have


class Reference:
    """Each op names the weights that it reads; a weight that the model does not have is absent from the mapping."""

    fused = False  # whether lengths are read on the device, so that a step can be captured

    def product(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x weight^T + bias: x [tokens, inputs], weight [outputs, inputs]."""
        return few_tokens_linear(x, weight, bias)

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        return self.product(x, weights[name], weights.get(f"{name}.bias"))

    def norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return rms_norm(x, weights[name], eps)

    def layer_norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return layer_norm(x, x.shape[-1:], weights.get(name), weights.get(f"{name}.bias"), eps)

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        """residual + the sum over ranks of a product whose inputs they share."""
        y = self.few(x, weights[name], bias=weights.get(f"{name}.bias"), residual=residual)
        return residual + self.all_reduce(self.linear(x, weights, name)) if y is None else y

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        y = self.few(x, weights[name], bias=weights.get(f"{name}.bias"), norm=weights[norm], eps=eps)
        return self.linear(self.norm(x, weights, norm, eps), weights, name) if y is None else y

    def few(
        self,
        x: torch.Tensor,
        weight: Weight,
        *,
        bias: torch.Tensor | None = None,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        gate: bool = False,
    ) -> torch.Tensor | None:
        """A product of few tokens and what is around it in one kernel; None where there is none for it."""
        found = few_tokens_operand(x, weight, bias)
        if found is None:
            return None
        return found.product(x, bias, norm=norm, eps=eps, residual=residual, gate=gate)

    def qkv_rope_write(
        self, qkv: torch.Tensor, weights: Weights, cfg: ModelConfig, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        """Split the fused projection, rotate q and k, write k and v to their slots, and return q."""
        if cache.spec.bits is None and step.tables is not None and "q_norm" not in weights:
            k_cache, v_cache = cache.rows["k"], cache.rows["v"]
            rotated = rope_write(qkv, step.tables, step.positions, step.slots, k_cache, v_cache, cfg.heads)
            if rotated is not None:
                return rotated
        heads = qkv.view(len(qkv), -1, cfg.head_dim)
        qk, v = heads.split((cfg.heads + cfg.kv_heads, cfg.kv_heads), dim=1)
        if "q_norm" in weights:
            parts = zip(("q_norm", "k_norm"), qk.split((cfg.heads, cfg.kv_heads), dim=1), strict=True)
            qk = torch.cat([rms_norm(part, weights[norm], cfg.norm_eps) for norm, part in parts], dim=1)
        if step.rope is not None:
            qk = rotate(qk, *step.rope)
        q, k = qk.split((cfg.heads, cfg.kv_heads), dim=1)
        for name, rows in (("k", k), ("v", v)):
            cache.write(name, step.slots, rows)
        return q

    def rope_attend(
        self,
        qkv: torch.Tensor,
        weights: Weights,
        cfg: ModelConfig,
        cache: LayerCache,
        step: Step,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """`qkv_rope_write` and `attend`, one after the other."""
        return self.attend(self.qkv_rope_write(qkv, weights, cfg, cache, step), cache, step, scale, window)

    def attend(self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
        """Causal attention within each sequence: [tokens, heads, head_dim] to [tokens, heads * head_dim]."""
        return attend(q, cache, step, scale, window).flatten(1)

    def latent_rope_write(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        weights: Weights,
        cfg: ModelConfig,
        cache: LayerCache,
        step: Step,
    ) -> torch.Tensor:
        """Write the normed latent and the rotated shared key to their slot; q as heads, its rotary part rotated."""
        assert cfg.mla is not None
        latent = self.norm(kv[:, : cfg.mla.kv_lora_rank], weights, "kv_norm", LATENT_EPS)
        cache.write("latent", step.slots, latent_row(kv, latent, cfg.mla, step))
        return rotate_tail(q.view(len(q), cfg.heads, -1), cfg.mla.qk_nope_head_dim, cfg.mla, step)

    def latent_attend(
        self, q: torch.Tensor, weights: Weights, cfg: ModelConfig, cache: LayerCache, step: Step, scale: float
    ) -> torch.Tensor:
        """Causal attention over latents: [tokens, heads, nope + rope] to [tokens, heads * v_head_dim]."""
        assert cfg.mla is not None
        return attend_latent(q, weights["kv_b"], cache, cfg.mla, step, scale).flatten(1)

    def add_gated_mlp(self, x: torch.Tensor, weights: Weights, norm: str, eps: float) -> torch.Tensor:
        """x + down(silu(gate(norm(x))) * up(norm(x))), gate and up fused in one weight."""
        gated = self.few(
            x, weights["gate_up"], bias=weights.get("gate_up.bias"), norm=weights[norm], eps=eps, gate=True
        )
        if gated is None:
            gated = self.silu_gate(self.norm_linear(x, weights, norm, "gate_up", eps))
        return self.add_linear(x, gated, weights, "down")

    def moe(self, x: torch.Tensor, weights: Weights, norm: str, cfg: ModelConfig) -> torch.Tensor:
        """The weighted sum of each token's experts of norm(x), and the experts that all tokens share."""
        assert cfg.moe is not None
        x = self.norm(x, weights, norm, cfg.norm_eps)
        shares, ids = self.route(x, weights, cfg)
        gate_up, down = (weights[f"experts.{name}"].unflatten(0, (cfg.moe.experts, -1)) for name in ("gate_up", "down"))
        mixed = self.mix(self.experts(x, ids, gate_up, down), shares)
        if cfg.moe.shared_dim:
            shared = self.linear(self.silu_gate(self.linear(x, weights, "shared.gate_up")), weights, "shared.down")
            if cfg.moe.shared_gate:
                shared = shared * self.sigmoid(self.linear(x, weights, "shared.gate"))
            mixed = mixed + shared
        return mixed

    def route(self, x: torch.Tensor, weights: Weights, cfg: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of each token's experts, [tokens, top_k]."""
        assert cfg.moe is not None
        return route(self.linear(x.float(), weights, "router"), weights.get("router.correction"), cfg.moe)

    def experts(self, x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
        return run_experts(x, ids, gate_up, down)

    def mix(self, y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """sum_k shares[t, k] y[t, k], in float32: y [tokens, top_k, dim]."""
        return torch.bmm(shares[:, None], y.float()).squeeze(1).to(y.dtype)

    def mlp(self, x: torch.Tensor, weights: Weights, activation: str) -> torch.Tensor:
        """fc2(relu(fc1(x))), or with gelu."""
        x = self.linear(x, weights, "fc1")
        return self.linear(relu(x) if activation == "relu" else self.gelu(x), weights, "fc2")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return silu(x)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return gelu(x)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks: of one rank, its own."""
        return x

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: [tokens, 2 ffn] to [tokens, ffn]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.silu(gate) * up
