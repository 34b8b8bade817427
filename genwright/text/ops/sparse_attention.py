"""Top-k sparse attention: a generated token's query reads the values of the tokens with the highest weights only.

As in FlexLLMGen, each head of a query chooses among the tokens before it by their softmax weights over all of them, and
always reads its own token; the weights of the chosen ones are not normalised again. Prompts attend to all tokens.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.kernels import PAGE
from genwright.text.cache.layout import LayerCache
from genwright.text.ops.attention import gather
from genwright.text.ops.step import QueryGroup, Step

Int64s = NDArray[np.int64]


def tokens_read(positions: Int64s, generated: NDArray[np.bool_], window: int | None, sparsity: float) -> Int64s:
    """How many of the tokens before it each query reads."""
    visible = positions if window is None else np.minimum(positions, window - 1)
    return np.where(generated, np.floor(visible * sparsity).astype(np.int64), visible)


def sparse_attend(
    q: Tensor, names: tuple[str, str], value_size: int, cache: LayerCache, step: Step, counts: Int64s, scale: float,
    window: int | None,
) -> Tensor:  # fmt: skip
    """Attention of q [tokens, heads, head_dim], which read `counts` [tokens] tokens before them, and themselves.

    The rows `names` are the keys and the values, of which the first `value_size` elements are read.
    """
    parts = [
        _attend_group(q[group.rows], names, value_size, cache, group, step, counts[group.rows], scale, window)
        for group in step.groups
    ]
    return torch.cat(parts)


def _attend_group(
    q: Tensor, names: tuple[str, str], value_size: int, cache: LayerCache, group: QueryGroup, step: Step,
    counts: Int64s, scale: float, window: int | None,
) -> Tensor:  # fmt: skip
    k = gather(cache, names[0], group, step, q.dtype)
    k = k if k.dim() == 4 else k[:, :, None]  # [sequences, length, kv_heads, head_dim]
    kv_heads, heads = k.shape[2], q.shape[1]
    grouped = q.view(group.count, group.queries, kv_heads, heads // kv_heads, -1)
    scores = torch.einsum("sqhgd,slhd->sqhgl", grouped, k).float() * scale
    position = step.positions[group.rows].view(group.count, group.queries, 1, 1, 1)
    key = torch.arange(group.length, device=q.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
    own = position.expand(*weights.shape[:-1], 1)
    most = int(counts.max())
    best = weights.scatter(-1, own, -1.0).topk(min(most, group.length - 1), dim=-1)
    limit = torch.from_numpy(counts).to(q.device, non_blocking=True).view(position.shape)
    within = torch.arange(best.values.shape[-1], device=q.device) < limit
    chosen = torch.cat((best.indices, own), dim=-1)
    kept = torch.cat((best.values * within, weights.gather(-1, own)), dim=-1).to(q.dtype)
    table = step.page_tables[cache.group][group.sequences]
    pages = table.gather(1, (chosen // PAGE).flatten(1)).view(chosen.shape)
    head = torch.arange(kv_heads, device=q.device).view(kv_heads, 1, 1)
    v = cache.read_vectors(names[1], pages * PAGE + chosen % PAGE, head, q.dtype)[..., :value_size]
    return torch.einsum("sqhgk,sqhgkd->sqhgd", kept, v).reshape(-1, heads, value_size)
