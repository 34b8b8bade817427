"""The reference backend: the ops that a block is written in, in plain torch, on any device."""

from collections.abc import Mapping

import torch
from torch.nn.functional import linear, silu

from genwright.text.config import ModelConfig
from genwright.text.engine.kv import LayerCache
from genwright.text.engine.step import Step
from genwright.text.layers.attention import attend
from genwright.text.layers.norm import rms_norm
from genwright.text.layers.rope import rotate

Weights = Mapping[str, torch.Tensor]


class Reference:
    """Each op names the weights that it reads; a weight that the model does not have is absent from the mapping."""

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        return linear(x, weights[name], weights.get(f"{name}.bias"))

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        return self.linear(rms_norm(x, weights[norm], eps), weights, name)

    def qkv_rope_write(
        self, qkv: torch.Tensor, weights: Weights, cfg: ModelConfig, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        """Split the fused projection, rotate q and k, write k and v to their slots, and return q."""
        assert step.rope is not None
        heads = qkv.view(len(qkv), -1, cfg.head_dim)
        qk, v = heads.split((cfg.heads + cfg.kv_heads, cfg.kv_heads), dim=1)
        if "q_norm" in weights:
            parts = zip(("q_norm", "k_norm"), qk.split((cfg.heads, cfg.kv_heads), dim=1), strict=True)
            qk = torch.cat([rms_norm(part, weights[norm], cfg.norm_eps) for norm, part in parts], dim=1)
        q, k = rotate(qk, *step.rope).split((cfg.heads, cfg.kv_heads), dim=1)
        for name, rows in (("k", k), ("v", v)):
            cache.rows[name].flatten(0, 1).index_copy_(0, step.slots, rows)
        return q

    def attend(self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
        """Causal attention within each sequence: [tokens, heads, head_dim] to [tokens, heads * head_dim]."""
        return attend(q, cache, step, scale, window).flatten(1)

    def gated_mlp(self, x: torch.Tensor, weights: Weights, norm: str, eps: float) -> torch.Tensor:
        """down(silu(gate(norm(x))) * up(norm(x))), gate and up fused in one weight."""
        gate, up = self.norm_linear(x, weights, norm, "gate_up", eps).chunk(2, dim=-1)
        return self.linear(self.silu(gate) * up, weights, "down")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return silu(x)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks: of one rank, its own."""
        return x
