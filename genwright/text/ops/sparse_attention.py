"""Top-k sparse attention: a generated token's query reads the values of the tokens with the highest weights only.

As in FlexLLMGen, each head of a query chooses among the tokens before it by their softmax weights over all of them, and
always reads its own token; the weights of the chosen ones are not normalised again. Prompts attend to all tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.kernels import PAGE
from genwright.text.cache.layout import LayerCache
from genwright.text.ops.attention import gather
from genwright.text.ops.step import QueryGroup, Step

Int64s = NDArray[np.int64]
FEW = 8  # queries of a sequence whose values are read one by one; more queries read each value anyway


def tokens_read(positions: Int64s, generated: NDArray[np.bool_], window: int | None, sparsity: float) -> Int64s:
    """How many of the tokens before it each query reads."""
    visible = positions if window is None else np.minimum(positions, window - 1)
    return np.where(generated, np.floor(visible * sparsity).astype(np.int64), visible)


@dataclass(frozen=True)
class SparseRows:
    """The rows that are keys and values, and how many tokens before it each query reads."""

    key: str
    value: str
    value_size: int  # elements of a value's row, from the first on
    counts: Int64s  # [tokens]
    limits: Tensor  # the same on the device


def sparse_attend(
    q: Tensor,
    rows: SparseRows,
    cache: LayerCache,
    step: Step,
    scale: float,
    window: int | None,
    home: tuple[LayerCache, Step] | None = None,
) -> Tensor:
    """Attention of q [tokens, heads, head_dim]; the values are read from `home`, if it is another cache."""
    read = partial(_values, rows, *((cache, step) if home is None else home))
    return torch.cat([_attend_group(q, rows, cache, group, step, scale, window, read) for group in step.groups])


def _attend_group(
    q: Tensor,
    rows: SparseRows,
    cache: LayerCache,
    group: QueryGroup,
    step: Step,
    scale: float,
    window: int | None,
    read: Callable[[QueryGroup, Tensor, torch.dtype], Tensor],
) -> Tensor:
    k = gather(cache, rows.key, group, step, q.dtype)
    k = k if k.dim() == 4 else k[:, :, None]  # [sequences, length, kv_heads, head_dim]
    shape = group.count, group.queries, k.shape[2], q.shape[1] // k.shape[2]
    scores = torch.einsum("sqhgd,slhd->sqhgl", q[group.rows].view(*shape, -1), k).float() * scale
    position = step.positions[group.rows].view(*shape[:2], 1, 1, 1)
    key = torch.arange(group.length, device=q.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
    own, output = position.expand(*shape, 1), (q.shape[1], rows.value_size)
    most = min(int(rows.counts[group.rows].max()), group.length - 1)
    best = weights.scatter(-1, own, -1.0).topk(most, dim=-1)
    within = torch.arange(most, device=q.device) < rows.limits[group.rows].view(position.shape)
    chosen = torch.cat((best.indices, own), dim=-1)
    kept = torch.cat((best.values * within, weights.gather(-1, own)), dim=-1).to(q.dtype)
    if group.queries <= FEW:
        return torch.einsum("sqhgk,sqhgkd->sqhgd", kept, read(group, chosen, q.dtype)).reshape(-1, *output)
    v = gather(cache, rows.value, group, step, q.dtype).view(*k.shape[:3], -1)[..., : rows.value_size]
    kept = torch.zeros_like(weights, dtype=q.dtype).scatter_(-1, chosen, kept)
    return torch.einsum("sqhgl,slhd->sqhgd", kept, v).reshape(-1, *output)


def _values(
    rows: SparseRows, cache: LayerCache, step: Step, group: QueryGroup, tokens: Tensor, dtype: torch.dtype
) -> Tensor:
    """The values of tokens [sequences, queries, kv_heads, heads_per_kv, k], where the queries are."""
    table = step.page_tables[cache.group][group.sequences]
    chosen = tokens.to(table.device)
    pages = table.gather(1, (chosen // PAGE).flatten(1)).view(chosen.shape)
    head = torch.arange(chosen.shape[2], device=table.device).view(-1, 1, 1)
    values = cache.read_vectors(rows.value, pages * PAGE + chosen % PAGE, head, dtype)
    return values[..., : rows.value_size].to(tokens.device)
