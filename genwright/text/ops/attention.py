"""Attention over a paged cache: one query of a decoding sequence, or the queries of a chunk of a prompt."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from genwright.kernels import PAGE
from genwright.text.cache.layout import LayerCache
from genwright.text.ops.step import QueryGroup, Step


def gather(cache: LayerCache, name: str, group: QueryGroup, step: Step, dtype: torch.dtype) -> Tensor:
    """The cached rows of a group's sequences, [sequences, length, ...]."""
    pages = step.page_tables[cache.group][group.sequences, : -(-group.length // PAGE)].reshape(-1)
    rows = cache.read(name, pages, dtype)
    return rows.view(group.count, -1, *rows.shape[2:])[:, : group.length]


def attend_group(
    q: Tensor, k: Tensor, v: Tensor, group: QueryGroup, step: Step, scale: float, window: int | None
) -> Tensor:
    """softmax(q k^T * scale) v: q [sequences * queries, heads, head_dim], k and v [sequences, length, kv_heads, _]."""
    heads, kv_heads = q.shape[1], k.shape[2]
    heads_per_kv = heads // kv_heads
    if (window, heads_per_kv) not in group.masks:
        group.masks[window, heads_per_kv] = _mask(group, step, window, heads_per_kv, q.dtype)
    # Heads that share a key-value head become further queries of it, so that keys are never repeated.
    grouped = q.view(group.count, group.queries, kv_heads, heads_per_kv, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
    output = scaled_dot_product_attention(
        grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=group.masks[window, heads_per_kv], scale=scale
    )
    output = output.view(group.count, kv_heads, heads_per_kv, group.queries, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(-1, heads, v.shape[-1])


def _mask(group: QueryGroup, step: Step, window: int | None, heads_per_kv: int, dtype: torch.dtype) -> Tensor | None:
    """The additive mask [sequences, 1, heads_per_kv * queries, group.length]; None if every query sees every key."""
    if group.count == 1 and group.queries == 1 and (window is None or group.length <= window):
        return None
    position = step.positions[group.rows].view(group.count, 1, group.queries, 1)
    key = torch.arange(group.length, device=position.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, float("-inf"))
    return mask.repeat(1, 1, heads_per_kv, 1)
