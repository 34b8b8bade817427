"""What each layer stores for a token, and the paged tensors that hold it.

All layers share one pool of pages of the same size. Layers with the same window are divided into groups, all groups
have the same number of layers, and a page holds PAGE tokens of one group. A model whose layers have the same window is
one group. Gemma 3 has five local layers for each global one, so it has five groups of local layers; their pages are
freed once the window has passed them.
"""

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.quant.kv_cache import Entry, entries, pack, unpack

CACHE_BITS: dict[str, int | None] = {"auto": None, "int8": 8, "int4": 4}  # None keeps the model's dtype
NULL_PAGE = 0  # replaces pages that a window has passed; models with windows never allocate it, so it stays zero


@dataclass(frozen=True)
class LayerSpec:
    """What one layer stores for each token: named rows with their shapes. Queries see the last `window` tokens only."""

    rows: Mapping[str, tuple[int, ...]]
    window: int | None = None

    def part(self, ranks: int) -> "LayerSpec":
        """What one of several ranks stores: some of the heads, or the whole row of a layer without heads."""
        rows = {n: (max(row[0] // ranks, 1), *row[1:]) if len(row) > 1 else row for n, row in self.rows.items()}
        return replace(self, rows=rows)


@dataclass(frozen=True)
class CacheSpec:
    """What a model's layers store, in a floating-point type or in 8 or 4 bits."""

    layers: Sequence[LayerSpec]  # all with rows of the same shapes
    dtype: torch.dtype
    bits: int | None = None
    own: range | None = None  # the layers of this pipeline stage; the pages are the same on every stage

    def with_draft(self) -> "CacheSpec":
        """This spec with a layer more, for the multi-token-prediction layer."""
        return replace(self, layers=[*self.layers, self.layers[-1]])

    @cached_property
    def groups(self) -> list[list[int]]:
        """Layers that share pages. A group has as many layers as the window with the fewest layers."""
        windows = [layer.window for layer in self.layers]
        kinds = [[i for i, w in enumerate(windows) if w == window] for window in dict.fromkeys(windows)]
        size = min(map(len, kinds))
        return [kind[first : first + size] for kind in kinds for first in range(0, len(kind), size)]

    @cached_property
    def group_of(self) -> dict[int, int]:
        """The index of each layer's group."""
        return {layer: index for index, group in enumerate(self.groups) for layer in group}

    @property
    def windows(self) -> list[int | None]:
        """The window of each group."""
        return [self.layers[group[0]].window for group in self.groups]

    @property
    def rows(self) -> Mapping[str, tuple[int, ...]]:
        return self.layers[0].rows

    def tensors(self) -> dict[str, Entry]:
        """Shape and dtype of one token's tensors in one layer; 8 bits add `k.scale` to `k`, 4 bits also `k.minimum`."""
        if self.bits is None:
            return {name: (shape, self.dtype) for name, shape in self.rows.items()}
        packed = (entries(name, shape, self.bits) for name, shape in self.rows.items())
        return {name: entry for each in packed for name, entry in each.items()}

    def page_tensors(self, *counts: int) -> dict[str, Entry]:
        """Shape and dtype of the tensors of `counts` pages."""
        return {name: ((*counts, PAGE, *shape), dtype) for name, (shape, dtype) in self.tensors().items()}

    @property
    def row_sizes(self) -> dict[str, int]:
        """Bytes of one token's tensors in one layer."""
        return {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in self.tensors().items()}

    @property
    def row_bytes(self) -> int:
        return sum(self.row_sizes.values())

    @property
    def page_bytes(self) -> int:
        return PAGE * self.row_bytes * max(map(len, self.stored))

    @cached_property
    def stored(self) -> list[list[int]]:
        """The layers of each group that this rank stores."""
        return [[layer for layer in group if self.own is None or layer in self.own] for group in self.groups]

    @property
    def null_pages(self) -> int:
        return 1 if any(self.windows) else 0

    def pages_of(self, length: int, step_tokens: int) -> int:
        """The most pages that a sequence of this length holds, when a step computes up to `step_tokens` of it."""
        total = 0
        for window in self.windows:
            # One page more, because a window may begin and end inside a page.
            held = length if window is None else min(length, window + step_tokens + PAGE)
            total += -(-held // PAGE)
        return total


@dataclass(frozen=True)
class LayerCache:
    """One layer's pages: each of the spec's tensors as [pages, PAGE, *shape]."""

    layer: int
    group: int  # index of its page table
    rows: Mapping[str, Tensor]
    spec: CacheSpec

    def write(self, name: str, slots: Tensor, rows: Tensor) -> None:
        """Write rows [tokens, *shape] to their slots."""
        bits = self.spec.bits
        for part, values in ({name: rows} if bits is None else pack(name, rows, bits)).items():
            self.rows[part].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, name: str, pages: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows of some pages, [len(pages), PAGE, *shape]."""
        return self._unpacked(name, lambda rows: rows.index_select(0, pages), dtype)

    def read_vectors(self, name: str, slots: Tensor, heads: Tensor, dtype: torch.dtype) -> Tensor:
        """One head's vector of each slot, [*slots.shape, size]; rows without heads have one."""
        one_head = len(self.spec.rows[name]) == 1

        def pick(rows: Tensor) -> Tensor:
            rows = rows.flatten(0, 1)
            return rows[slots] if one_head else rows[slots, heads]

        return self._unpacked(name, pick, dtype)

    def _unpacked(self, name: str, pick: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        bits = self.spec.bits
        if bits is None:
            return pick(self.rows[name]).to(dtype)
        parts = {part: pick(self.rows[part]) for part in entries(name, self.spec.rows[name], bits)}
        return unpack(name, parts, self.spec.rows[name][-1], bits, dtype)


class PagedCache(Protocol):
    """What a page pool needs of the pages, wherever they are."""

    spec: CacheSpec
    pages: int

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of page `source` to page `target`."""

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages that may hold NaN: a masked key has weight 0, and 0 times NaN is NaN."""


class Cache(PagedCache):
    """The pages of all layers: each of the spec's tensors as [layers of a group, pages, PAGE, *shape]."""

    def __init__(
        self,
        spec: CacheSpec,
        pages: int,
        device: torch.device,
        zeros: Callable[[int], Tensor] | None = None,  # makes uint8 [size] instead of PyTorch
    ):
        self.spec, self.pages = spec, pages
        new = zeros or partial(_zeros, device=device)
        self.rows = {
            name: new(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            for name, (shape, dtype) in spec.page_tensors(max(map(len, spec.stored)), pages).items()
        }
        layers = [
            LayerCache(layer, number, {name: rows[index] for name, rows in self.rows.items()}, spec)
            for number, group in enumerate(spec.stored)
            for index, layer in enumerate(group)
        ]
        self.layers = sorted(layers, key=lambda cache: cache.layer)

    def layer(self, layer: int) -> LayerCache:
        """The pages of one of the model's layers, which may be all or those of a pipeline stage."""
        return self.layers[layer - (self.spec.own.start if self.spec.own else 0)]

    def copy(self, source: int, target: int, count: int) -> None:
        for rows in self.rows.values():
            rows[:, target, :count] = rows[:, source, :count]

    def clear(self, pages: Sequence[int]) -> None:
        for rows in self.rows.values():
            rows[:, list(pages)] = 0


def _zeros(size: int, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    # The operating system provides this memory page by page on first use. torch.zeros would write all of it now, and
    # np.zeros asks for huge pages: the first token needs one for each layer, which takes 0.2 s in a small model.
    private = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(private, dtype=torch.uint8)[:size]
