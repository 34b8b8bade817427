"""PlacedOps: a backend's ops, with attention where each sequence's cache is, over all of it or over its top k."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla
from genwright.text.ops.attention import attend_group, gather
from genwright.text.ops.latent_attention import absorb_keys, project_values
from genwright.text.ops.protocol import Weights
from genwright.text.ops.sparse_attention import Int64s, SparseRows, sparse_attend, tokens_read
from genwright.text.ops.step import Step
from genwright.text.ops.torch_ops import TorchOps


@dataclass(frozen=True)
class Sparse:
    """How much of the cache queries read."""

    sparsity: float
    positions: Int64s  # [tokens]
    generated: NDArray[np.bool_]  # [tokens]; others are of a prompt
    device: torch.device
    _counts: dict[int | None, tuple[Int64s, Tensor]] = field(default_factory=dict)

    def rows(self, key: str, value: str, value_size: int, window: int | None) -> SparseRows:
        if window not in self._counts:
            counts = tokens_read(self.positions, self.generated, window, self.sparsity)
            self._counts[window] = counts, torch.from_numpy(counts).to(self.device)
        return SparseRows(key, value, value_size, *self._counts[window])


@dataclass(frozen=True)
class Place:
    """Sequences of a micro-batch whose caches are in one place."""

    rows: Tensor | None  # of the micro-batch's tokens; None for all
    step: Step  # of these sequences, with the pages' numbers on the device
    on_host: Step | None = None  # the same in CPU memory, where attention or sparse attention's values are
    sparse: Sparse | None = None  # None for queries that read all


@dataclass(frozen=True)
class PlacedPages:
    """One layer's pages at a place: on the device, in CPU memory, or keys on the device and values in CPU memory."""

    place: Place
    device: LayerCache | None
    host: LayerCache | None


@dataclass(frozen=True)
class PlacedCache(LayerCache):
    """One layer's pages of a micro-batch, in several places."""

    places: Sequence[PlacedPages] = ()


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

        def attend(pages: PlacedPages) -> Tensor:
            place, sparse = pages.place, pages.place.sparse
            part = qkv if place.rows is None else qkv[place.rows]
            if pages.host is None and sparse is None:
                assert pages.device is not None
                return self._ops.rope_attend(part, weights, attention, pages.device, place.step)
            q, k, v = self._ops.split_qkv(part, weights, attention, cache.spec, place.step)
            for_keys, for_values = _caches(pages)
            q, k = q.to(for_keys.device), k.to(for_keys.device)
            for_keys.write("k", k)
            for_values.write("v", v.to(for_values.device))
            if sparse is None:
                q = q.float() if q.dtype == torch.float16 else q  # which CPUs multiply slowly
                return self._host.attend(q, attention, for_keys.cache, for_keys.step).to(qkv)
            rows = sparse.rows("k", "v", v.shape[-1], attention.window)
            return self._sparse(q, rows, for_keys, for_values, attention).flatten(1).to(qkv.device)

        return _joined(cache, qkv, attend)

    def latent_attend(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, cache: LayerCache, step: Step
    ) -> Tensor:
        if not isinstance(cache, PlacedCache):
            return self._ops.latent_attend(q, kv, weights, mla, attention, cache, step)

        def attend(pages: PlacedPages) -> Tensor:
            place, sparse = pages.place, pages.place.sparse
            queries, new = (q, kv) if place.rows is None else (q[place.rows], kv[place.rows])
            if pages.host is None and sparse is None:
                assert pages.device is not None
                return self._ops.latent_attend(queries, new, weights, mla, attention, pages.device, place.step)
            queries, rows = self._ops.latent_rows(queries, new, weights, mla, attention, place.step)
            latents, _ = _caches(pages)
            latents.write("latent", rows.to(latents.device))
            absorbed = absorb_keys(queries, weights["kv_b"], mla).to(latents.device)
            if sparse is None:
                out = _attend_latents(absorbed, mla.kv_lora_rank, attention, latents.cache, latents.step)
            else:
                read = sparse.rows("latent", "latent", mla.kv_lora_rank, None)
                out = self._sparse(absorbed, read, latents, latents, attention)
            return project_values(out.to(q.device), weights["kv_b"], mla).flatten(1)

        return _joined(cache, q, attend)

    @staticmethod
    def _sparse(q: Tensor, rows: SparseRows, keys: "Held", values: "Held", attention: Attention) -> Tensor:
        home = values.cache, values.step
        return sparse_attend(q, rows, keys.cache, keys.step, attention.scale, attention.window, home)


@dataclass(frozen=True)
class Held:
    """Rows of a layer's cache, and the step with the numbers of their pages."""

    cache: LayerCache
    step: Step

    @property
    def device(self) -> torch.device:
        return self.step.positions.device

    def write(self, name: str, rows: Tensor) -> None:
        self.cache.write(name, self.step.slots[self.cache.group], rows)


def _caches(pages: PlacedPages) -> tuple[Held, Held]:
    """Where keys and values are."""
    on_device = None if pages.device is None else Held(pages.device, pages.place.step)
    if pages.host is None:
        assert on_device is not None
        return on_device, on_device
    assert pages.place.on_host is not None
    on_host = Held(pages.host, pages.place.on_host)
    return on_device or on_host, on_host


def _attend_latents(q: Tensor, rank: int, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
    parts = []
    for group in step.groups:
        latents = gather(cache, "latent", group, step, q.dtype)[:, :, None]
        parts.append(attend_group(q[group.rows], latents, latents[..., :rank], group, step, attention.scale, None))
    return torch.cat(parts)


def _joined(cache: PlacedCache, x: Tensor, attend: Callable[[PlacedPages], Tensor]) -> Tensor:
    """The outputs of all places, in the order of the micro-batch's tokens [tokens, ...]."""
    if len(cache.places) == 1:
        return attend(cache.places[0])
    out: Tensor | None = None
    for pages in cache.places:
        part = attend(pages)
        out = part.new_empty(len(x), part.shape[1]) if out is None else out
        out[pages.place.rows] = part
    assert out is not None
    return out
