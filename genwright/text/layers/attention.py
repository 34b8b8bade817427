"""Attention over a paged cache, for ragged queries: one token of a running sequence or a chunk of a prompt."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from genwright.text.engine.kv import PAGE, LayerCache
from genwright.text.engine.step import Group, Step


def attend(q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
    """softmax(q k^T * scale) v, causal, over each sequence's own pages: q [tokens, heads, head_dim]."""
    out = torch.empty_like(q)
    heads, head_dim = q.shape[1:]
    kv_heads = cache.rows["k"].shape[2]
    for group in step.groups:
        if window not in group.masks:
            group.masks[window] = _mask(group, step, window, heads // kv_heads, q.dtype)
        pages = step.page_table[group.first : group.first + group.count, : -(-group.length // PAGE)].reshape(-1)
        k, v = (
            rows.index_select(0, pages).view(group.count, -1, kv_heads, head_dim)[:, : group.length].transpose(1, 2)
            for rows in (cache.rows["k"], cache.rows["v"])
        )  # [sequences, kv_heads, length, head_dim]
        # The heads that share a key-value head stand as further queries of it, so that keys are never repeated.
        rows = slice(group.first_row, group.first_row + group.count * group.queries)
        grouped = q[rows].view(group.count, group.queries, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mixed = scaled_dot_product_attention(grouped, k, v, attn_mask=group.masks[window], scale=scale)
        mixed = mixed.view(group.count, kv_heads, -1, group.queries, head_dim).permute(0, 3, 1, 2, 4)
        out[rows] = mixed.reshape(-1, heads, head_dim)
    return out


def _mask(group: Group, step: Step, window: int | None, share: int, dtype: torch.dtype) -> torch.Tensor | None:
    """What queries may see, as summands [sequences, 1, share * queries, group.length]; None where that is all."""
    if group.count == 1 and group.queries == 1 and (window is None or group.length <= window):
        return None
    rows = slice(group.first_row, group.first_row + group.count * group.queries)
    position = step.positions[rows].view(group.count, 1, group.queries, 1)
    key = torch.arange(group.length, device=position.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, float("-inf"))
    return mask.repeat(1, 1, share, 1)
