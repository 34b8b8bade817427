"""DenseOps: the engine's ops over modules and a cache without pages, in forms that torch.compile can trace."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as traceable
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from genwright.text.config import Attention, Moe
from genwright.text.ops.moe import route
from genwright.text.ops.protocol import Weights
from genwright.text.ops.torch_ops import TorchOps

Mask = BlockMask | Tensor  # a tensor is True where a query sees a key


@dataclass
class DenseStep:
    """A batch of equally many tokens at the same positions of their sequences."""

    tokens: Tensor  # [batch * tokens]
    batch: int
    positions: Tensor  # [tokens]
    freqs_cis: Tensor  # [tokens, head_dim / 2, 2]: cos and sin
    mask: Mask

    def wanted(self, x: Tensor) -> Tensor:
        """All rows, for each of which logits are wanted."""
        return x

    def needed(self, layer: int, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        return x, attended


@dataclass
class DenseCache:
    """A layer's keys and values [batch, kv_heads, length, head_dim]."""

    layer: int
    k: Tensor
    v: Tensor


class DenseOps(TorchOps):
    """A weight is the module that multiplies with it, so that modules which a script replaces are used.

    With `ranks`, each rank has a part of the heads and of the MLPs, and the whole of the vocabulary.
    """

    def __init__(self, ranks: dist.ProcessGroup | None = None):
        super().__init__()
        self.ranks = ranks

    def all_reduce(self, x: Tensor) -> Tensor:
        return x if self.ranks is None else traceable.all_reduce(x, "sum", self.ranks)

    def product(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        y: Tensor = weight(x)
        return y

    def add_linear(
        self, residual: Tensor, x: Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> Tensor:
        return residual + self.all_reduce(self.product(x, weights[name]))

    def add_gated_mlp(
        self, x: Tensor, weights: Weights, norm: str, eps: float, activation: str = "silu", post_norm: str = ""
    ) -> Tensor:
        """`gate` and `up` are separate, so that each is the parameter that the original has."""
        normed = self.norm(x, weights, norm, eps)
        gate, up = (self.linear(normed, weights, name) for name in ("gate", "up"))
        return self.add_linear(x, self.activate(gate, activation) * up, weights, "down")

    def add_moe(self, x: Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> Tensor:
        residual, x = x, self.norm(x, weights, norm, eps)
        topk_weights, ids = route(self.product(x, weights["router"]), None, moe)
        output = torch.einsum("tad,ta->td", weights["experts"](x, ids), topk_weights)
        return residual + self.all_reduce(output)

    def rope_attend(self, qkv: Tensor, weights: Weights, attention: Attention, cache: Any, step: Any) -> Tensor:
        kv_heads, head_dim = cache.k.shape[1], cache.k.shape[3]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        split = qkv.view(step.batch, -1, heads + 2 * kv_heads, head_dim).transpose(1, 2)
        qk, v = split.split((heads + kv_heads, kv_heads), dim=1)
        q, k = rotate_neighbours(qk, step.freqs_cis).split((heads, kv_heads), dim=1)
        cache.k[:, :, step.positions] = k
        cache.v[:, :, step.positions] = v
        return self.attend_dense(q, cache, step.mask).transpose(1, 2).reshape(len(qkv), heads * head_dim)

    def attend_dense(self, q: Tensor, cache: DenseCache, mask: Mask) -> Tensor:
        """softmax(q k^T / sqrt(head_dim)) v over the whole cache: q [batch, heads, tokens, head_dim]."""
        heads_per_kv = q.shape[1] // cache.k.shape[1]
        if isinstance(mask, BlockMask):
            output = flex_attention(q, cache.k, cache.v, block_mask=mask, enable_gqa=heads_per_kv > 1)
            assert isinstance(output, Tensor)
            return output
        k, v = (rows.repeat_interleave(heads_per_kv, dim=1) for rows in (cache.k, cache.v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def rotate_neighbours(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotate channels 2 i and 2 i + 1 of x [batch, heads, tokens, head_dim], as Meta's checkpoints need it."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = freqs_cis.unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).type_as(x)
