"""Multi-head latent attention (DeepSeek-V2, section 2.1) over one latent row per token in the cache.

Absorbed (its equation 10 and after): the up-projections of keys and values move to the queries and the output, and
attention runs on the latents themselves, with one key-value head. Expanded: latents become every head's keys and values
first, which costs less arithmetic where many queries read the same latents.
"""

import torch

from genwright.text.config import Mla
from genwright.text.ops.attention import attend_group
from genwright.text.ops.rope import rotate
from genwright.text.ops.step import QueryGroup, RopeTables, Step


def latent_row(kv: torch.Tensor, latent: torch.Tensor, mla: Mla, cos_sin: RopeTables) -> torch.Tensor:
    """What a token stores, [tokens, kv_lora_rank + rope]: its normed latent and the rotated key that heads share."""
    key = _rotate(kv[:, None, mla.kv_lora_rank :], mla, cos_sin)
    return torch.cat((latent, key[:, 0]), dim=-1)


def rotate_tail(q: torch.Tensor, mla: Mla, cos_sin: RopeTables) -> torch.Tensor:
    """Rotate the last channels of queries [tokens, heads, nope + rope]."""
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    return torch.cat((nope, _rotate(rope, mla, cos_sin)), dim=-1)


def _rotate(x: torch.Tensor, mla: Mla, cos_sin: RopeTables) -> torch.Tensor:
    if mla.rope_interleave:  # to halves, which is all one to the products of queries and keys
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return rotate(x, *cos_sin)


def up_projections(kv_b: torch.Tensor, mla: Mla) -> tuple[torch.Tensor, torch.Tensor]:
    """Of keys [heads, nope, kv_lora_rank] and of values [heads, v, kv_lora_rank]."""
    parts = kv_b.unflatten(0, (-1, mla.qk_nope_head_dim + mla.v_head_dim))
    key, value = parts.split((mla.qk_nope_head_dim, mla.v_head_dim), dim=1)
    return key, value


def expanding_is_less(group: QueryGroup, mla: Mla) -> bool:
    """Whether multiplications per head and sequence are fewer when latents are expanded."""
    queries, length, rank = group.queries, group.length, mla.kv_lora_rank
    heads = mla.qk_nope_head_dim + mla.v_head_dim
    in_expanded = length * rank * heads + queries * length * (heads + mla.qk_rope_head_dim)
    in_absorbed = queries * rank * heads + queries * length * (2 * rank + mla.qk_rope_head_dim)
    return in_expanded < in_absorbed


def absorbed(
    q: torch.Tensor, kv_b: torch.Tensor, latent: torch.Tensor, mla: Mla, group: QueryGroup, step: Step, scale: float
) -> torch.Tensor:
    """latent [sequences, length, kv_lora_rank + rope] is both keys and values."""
    key, value = up_projections(kv_b, mla)
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    q = torch.cat((torch.einsum("thn,hnc->thc", nope, key), rope), dim=-1)
    k = latent[:, :, None]
    mixed = attend_group(q, k, k[..., : mla.kv_lora_rank], group, step, scale, None)
    return torch.einsum("thc,hvc->thv", mixed, value)


def expanded(
    q: torch.Tensor, kv_b: torch.Tensor, latent: torch.Tensor, mla: Mla, group: QueryGroup, step: Step, scale: float
) -> torch.Tensor:
    key, value = up_projections(kv_b, mla)
    content, rope = latent.split((mla.kv_lora_rank, mla.qk_rope_head_dim), dim=-1)
    k = torch.einsum("slc,hnc->slhn", content, key)
    k = torch.cat((k, rope[:, :, None].expand(*k.shape[:3], -1)), dim=-1)
    return attend_group(q, k, torch.einsum("slc,hvc->slhv", content, value), group, step, scale, None)
