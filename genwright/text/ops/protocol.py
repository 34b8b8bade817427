"""Ops: the operations that `embed`, `block` and `head` are written in. Each backend implements all of them.

An op takes the names of the weights that it reads; a weight that the model does not have is absent from the mapping.
Where each rank computes a part of a sum, the op contains the all-reduce: an `add_...` op returns the whole sum on every
rank, with residual and bias added once. It may overwrite the residual, so the caller must not read it afterwards. In
deterministic mode each token gets the same bits alone, in any batch and under any chunking;
tests/text/ops/test_deterministic_ops.py checks this for every op of the protocol.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

from torch import Tensor

from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops.step import Step

LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever the model's norm_eps is
Weights = Mapping[str, Any]  # name: tensor or packed matrix


class Fused(TypedDict, total=False):
    """What a kernel may fuse with a matrix product: the norm before it, gate and residual after it."""

    norm: Tensor
    eps: float
    gate: bool  # silu(first half) * second half
    residual: Tensor | None


class Ops(Protocol):
    """x is always [tokens, dim]."""

    deterministic: bool

    def embedding(self, tokens: Tensor, weights: Weights, name: str) -> Tensor:
        """Rows of the embedding table, of which each rank may hold a part."""

    def norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
        """RMSNorm."""

    def layer_norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor: ...

    def linear(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        """x W^T + bias, without a sum over ranks: each rank computes its own outputs."""

    def norm_linear(self, x: Tensor, weights: Weights, norm: str, name: str, eps: float) -> Tensor:
        """linear(norm(x))."""

    def add_linear(
        self, residual: Tensor, x: Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> Tensor:
        """residual + x W^T + bias, summed over ranks; `post_norm` is applied before the residual is added."""

    def add_gated_mlp(
        self, x: Tensor, weights: Weights, norm: str, eps: float, activation: str = "silu", post_norm: str = ""
    ) -> Tensor:
        """x + down(activation(gate(norm(x))) * up(norm(x))), gate and up fused in one weight."""

    def add_mlp(self, residual: Tensor, x: Tensor, weights: Weights, activation: str) -> Tensor:
        """residual + fc2(activation(fc1(x)))."""

    def add_moe(self, x: Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> Tensor:
        """x + the weighted sum of the experts that the router picks for norm(x) + the shared experts."""

    def rope_attend(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        """Apply RoPE, write keys and values to the cache, and attend; returns [tokens, heads * head_dim]."""

    def latent_attend(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, cache: LayerCache, step: Step
    ) -> Tensor:
        """Write each token's latent to the cache and attend to the latents; returns [tokens, heads * v_head_dim]."""
