"""Ops: the operations that `embed`, `block` and `head` are written in. Each backend implements all of them.

An op names the weights that it reads; a weight that the model does not have is absent from the mapping. Where ranks
hold parts of a sum, the op adds the parts up: an `add_...` op returns the whole sum on every rank, with residual and
bias added once. A backend in deterministic mode gives each token the same bits alone, in any batch and under any
chunking; tests/text/ops/test_deterministic_ops.py checks every op of this protocol for that.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

import torch

from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops.step import Step

LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever the others have
Weights = Mapping[str, Any]  # tensors; of matrices also packed weights


class Fused(TypedDict, total=False):
    """What a kernel may compute together with a product: norm before it, gate and residual after it."""

    norm: torch.Tensor
    eps: float
    gate: bool  # silu(first half) * second half
    residual: torch.Tensor | None


class Ops(Protocol):
    """x is [tokens, dim] throughout."""

    deterministic: bool

    def embedding(self, tokens: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        """Rows of a table; ranks may hold parts of it."""
        ...

    def norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        """RMSNorm."""
        ...

    def layer_norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor: ...

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        """x W^T + bias, without a sum over ranks: each has its own outputs."""
        ...

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        """linear(norm(x))."""
        ...

    def add_linear(
        self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> torch.Tensor:
        """residual + x W^T + bias, summed over ranks; with `post_norm` the product is normed before it is added."""
        ...

    def add_gated_mlp(
        self,
        x: torch.Tensor,
        weights: Weights,
        norm: str,
        eps: float,
        activation: str = "silu",
        post_norm: str = "",
    ) -> torch.Tensor:
        """x + down(activation(gate(norm(x))) * up(norm(x))), gate and up fused in one weight."""
        ...

    def add_mlp(self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, activation: str) -> torch.Tensor:
        """residual + fc2(activation(fc1(x)))."""
        ...

    def add_moe(self, x: torch.Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> torch.Tensor:
        """x + the weighted sum of each token's experts of norm(x), and of the experts that all tokens share."""
        ...

    def rope_attend(
        self, qkv: torch.Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        """Rotate queries and keys, write keys and values to the cache, and attend: to [tokens, heads * head_dim]."""
        ...

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
        """Write each token's latent to the cache and attend over latents: to [tokens, heads * v_head_dim]."""
        ...
