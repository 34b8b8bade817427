"""PlacedOps: a backend's ops, with attention where each sequence's cache is, over all of it or over its top k."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla
from genwright.text.ops.attention import attend_group, gather
from genwright.text.ops.latent_attention import absorb_keys, project_values
from genwright.text.ops.protocol import Weights
from genwright.text.ops.sparse_attention import Int64s, sparse_attend, tokens_read
from genwright.text.ops.step import Step
from genwright.text.ops.torch_ops import TorchOps


@dataclass(frozen=True)
class Sparse:
    """How much of the cache queries read."""

    sparsity: float
    positions: Int64s  # [tokens]
    generated: Any  # bool [tokens]; others are of a prompt
    _counts: dict[int | None, Int64s] = field(default_factory=dict)

    def counts(self, window: int | None) -> Int64s:
        if window not in self._counts:
            self._counts[window] = tokens_read(self.positions, self.generated, window, self.sparsity)
        return self._counts[window]


@dataclass(frozen=True)
class Place:
    """Sequences of a micro-batch whose caches are in one place."""

    rows: Tensor | None  # of the micro-batch's tokens; None for all
    step: Step  # of these sequences, with the pages' numbers in that place
    on_host: Step | None = None  # the same in CPU memory, if attention is computed there
    sparse: Sparse | None = None  # None for queries that read all


@dataclass(frozen=True)
class PlacedCache(LayerCache):
    """One layer's pages of a micro-batch, in several places."""

    places: Sequence[tuple[Place, LayerCache]] = ()


class PlacedOps:
    """Every op is the backend's; attention over a PlacedCache is computed place by place."""

    def __init__(self, ops: TorchOps, host: TorchOps):
        self._ops = ops
        self._host = host  # for attention in CPU memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def rope_attend(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        if not isinstance(cache, PlacedCache):
            return self._ops.rope_attend(qkv, weights, attention, cache, step)

        def attend(place: Place, cache: LayerCache) -> Tensor:
            part = qkv if place.rows is None else qkv[place.rows]
            if place.on_host is None and place.sparse is None:
                return self._ops.rope_attend(part, weights, attention, cache, place.step)
            rows = self._ops.split_qkv(part, weights, attention, cache.spec, place.step)
            q, k, v = self._moved(place, *rows)
            step = place.on_host or place.step
            cache.write("k", step.slots[cache.group], k)
            cache.write("v", step.slots[cache.group], v)
            if place.sparse is None:
                return self._host.attend(q, attention, cache, step).to(qkv.device)
            window = attention.window
            counts = place.sparse.counts(window)
            out = sparse_attend(q, ("k", "v"), v.shape[-1], cache, step, counts, attention.scale, window)
            return out.flatten(1).to(qkv.device)

        return _joined(cache, qkv, attend)

    def latent_attend(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, cache: LayerCache, step: Step
    ) -> Tensor:
        if not isinstance(cache, PlacedCache):
            return self._ops.latent_attend(q, kv, weights, mla, attention, cache, step)

        def attend(place: Place, cache: LayerCache) -> Tensor:
            queries, new = (q, kv) if place.rows is None else (q[place.rows], kv[place.rows])
            if place.on_host is None and place.sparse is None:
                return self._ops.latent_attend(queries, new, weights, mla, attention, cache, place.step)
            queries, rows = self._ops.latent_rows(queries, new, weights, mla, attention, place.step)
            absorbed, rows = self._moved(place, absorb_keys(queries, weights["kv_b"], mla), rows)
            step, rank = place.on_host or place.step, mla.kv_lora_rank
            cache.write("latent", step.slots[cache.group], rows)
            if place.sparse is None:
                out = _attend_latents(absorbed, rank, attention, cache, step)
            else:
                names, counts = ("latent", "latent"), place.sparse.counts(None)
                out = sparse_attend(absorbed, names, rank, cache, step, counts, attention.scale, None)
            return project_values(out.to(q.device), weights["kv_b"], mla).flatten(1)

        return _joined(cache, q, attend)

    @staticmethod
    def _moved(place: Place, *tensors: Tensor) -> list[Tensor]:
        return list(tensors) if place.on_host is None else [tensor.cpu() for tensor in tensors]


def _attend_latents(q: Tensor, rank: int, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
    parts = []
    for group in step.groups:
        latents = gather(cache, "latent", group, step, q.dtype)[:, :, None]
        parts.append(attend_group(q[group.rows], latents, latents[..., :rank], group, step, attention.scale, None))
    return torch.cat(parts)


def _joined(cache: PlacedCache, x: Tensor, attend: Callable[[Place, LayerCache], Tensor]) -> Tensor:
    """The outputs of all places, in the order of the micro-batch's tokens [tokens, ...]."""
    if len(cache.places) == 1:
        return attend(*cache.places[0])
    out: Tensor | None = None
    for place, pages in cache.places:
        part = attend(place, pages)
        out = part.new_empty(len(x), part.shape[1]) if out is None else out
        out[place.rows] = part
    assert out is not None
    return out
