"""Multi-head latent attention (DeepSeek-V2, section 2.1) over one latent row per token in the cache.

Absorbed form (equation 10 and after): the up-projections of keys and values are applied to the queries and the output,
and attention runs on the latents, with one key-value head. Expanded form: the latents are first projected to every
head's keys and values, which needs less arithmetic where many queries read the same latents.
"""

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Mla
from genwright.text.ops.attention import attend_group
from genwright.text.ops.rope import rotate
from genwright.text.ops.step import QueryGroup, RopeTables, Step


def latent_row(kv: Tensor, latent: Tensor, mla: Mla, cos_sin: RopeTables) -> Tensor:
    """The cached rows [tokens, kv_lora_rank + rope]: the normed latent, and the rotated key that all heads share."""
    key = _rotate(kv[:, None, mla.kv_lora_rank :], mla, cos_sin)
    return torch.cat((latent, key[:, 0]), dim=-1)


def rotate_tail(q: Tensor, mla: Mla, cos_sin: RopeTables) -> Tensor:
    """Apply RoPE to the last channels of queries [tokens, heads, nope + rope]."""
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    return torch.cat((nope, _rotate(rope, mla, cos_sin)), dim=-1)


def _rotate(x: Tensor, mla: Mla, cos_sin: RopeTables) -> Tensor:
    if mla.rope_interleave:  # reorder pairs to halves; q k^T does not depend on the order of channels
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return rotate(x, *cos_sin)


def up_projections(kv_b: Tensor, mla: Mla) -> tuple[Tensor, Tensor]:
    """The up-projections of keys [heads, nope, kv_lora_rank] and of values [heads, v, kv_lora_rank]."""
    parts = kv_b.unflatten(0, (-1, mla.qk_nope_head_dim + mla.v_head_dim))
    key, value = parts.split((mla.qk_nope_head_dim, mla.v_head_dim), dim=1)
    return key, value


def prefer_expanded(group: QueryGroup, mla: Mla) -> bool:
    """Whether the expanded form needs fewer multiplications, counted per head and sequence."""
    queries, length, rank = group.queries, group.length, mla.kv_lora_rank
    head_dims = mla.qk_nope_head_dim + mla.v_head_dim
    in_expanded = length * rank * head_dims + queries * length * (head_dims + mla.qk_rope_head_dim)
    in_absorbed = queries * rank * head_dims + queries * length * (2 * rank + mla.qk_rope_head_dim)
    return in_expanded < in_absorbed


def absorbed(q: Tensor, kv_b: Tensor, latent: Tensor, mla: Mla, group: QueryGroup, step: Step, scale: float) -> Tensor:
    """The latents [sequences, length, kv_lora_rank + rope] serve as keys and values."""
    k = latent[:, :, None]
    output = attend_group(absorb_keys(q, kv_b, mla), k, k[..., : mla.kv_lora_rank], group, step, scale, None)
    return project_values(output, kv_b, mla)


def absorb_keys(q: Tensor, kv_b: Tensor, mla: Mla) -> Tensor:
    """Queries of the latents, [tokens, heads, kv_lora_rank + rope]."""
    key, _ = up_projections(kv_b, mla)
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    return torch.cat((torch.einsum("thn,hnc->thc", nope, key), rope), dim=-1)


def project_values(latent: Tensor, kv_b: Tensor, mla: Mla) -> Tensor:
    """The heads' outputs [tokens, heads, v] from weighted sums of latents [tokens, heads, kv_lora_rank]."""
    _, value = up_projections(kv_b, mla)
    return torch.einsum("thc,hvc->thv", latent, value)


def expanded(q: Tensor, kv_b: Tensor, latent: Tensor, mla: Mla, group: QueryGroup, step: Step, scale: float) -> Tensor:
    key, value = up_projections(kv_b, mla)
    content, rope = latent.split((mla.kv_lora_rank, mla.qk_rope_head_dim), dim=-1)
    k = torch.einsum("slc,hnc->slhn", content, key)
    k = torch.cat((k, rope[:, :, None].expand(*k.shape[:3], -1)), dim=-1)
    return attend_group(q, k, torch.einsum("slc,hvc->slhv", content, value), group, step, scale, None)


def expand_pages(
    cache: LayerCache, group: QueryGroup, step: Step, kv_b: Tensor, mla: Mla, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Every head's keys and values [pages, PAGE, heads, width] of a group's sequences, and their page table.

    Zeros fill up the narrower of the two, because attention over pages needs the same width.
    """
    used = -(-group.length // PAGE)
    latent = cache.read("latent", step.page_tables[cache.group][group.sequences, :used].reshape(-1), dtype)
    content, rope = latent.split((mla.kv_lora_rank, mla.qk_rope_head_dim), dim=-1)
    key, value = up_projections(kv_b, mla)
    k = torch.einsum("pic,hnc->pihn", content, key)
    v = torch.einsum("pic,hvc->pihv", content, value)
    key_dim, value_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
    zeros = k.new_zeros(1, 1, 1, abs(key_dim - value_dim)).expand(*k.shape[:3], -1)
    k_parts, v_parts = [k, rope[:, :, None].expand(*k.shape[:3], -1)], [v]
    (v_parts if value_dim < key_dim else k_parts).append(zeros)
    table = torch.arange(len(latent), device=latent.device).view(group.count, used)
    return torch.cat(k_parts, dim=-1), torch.cat(v_parts, dim=-1), table
