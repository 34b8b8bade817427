"""What each layer stores for a token, and the tensors that hold it in pages.

All layers draw on one pool of equally large pages. Layers that reach equally far back form groups of equally many
layers, and a page holds PAGE tokens of one group. A model whose layers are all alike is one group. In Gemma 3, with
five local layers to a global one, there are five groups of local layers, whose pages are free again once their window
has passed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from genwright.kernels import PAGE
from genwright.quant.kv_cache import Entry, entries, pack, unpack

CACHE_BITS: dict[str, int | None] = {"auto": None, "int8": 8, "int4": 4}  # of the formats; None is the model's type
NULL_PAGE = 0  # stands for pages that a window has passed; it stays zero, and is kept out of use where windows exist


@dataclass(frozen=True)
class LayerSpec:
    """What one layer stores for each token: named rows with their shapes. No query sees beyond `window` tokens."""

    rows: Mapping[str, tuple[int, ...]]
    window: int | None = None


@dataclass(frozen=True)
class CacheSpec:
    """What a model's layers store, in a float type or in 8 or 4 bits."""

    layers: Sequence[LayerSpec]  # their rows have the same shapes
    dtype: torch.dtype
    bits: int | None = None

    def with_draft(self) -> "CacheSpec":
        """With the multi-token-prediction layer's rows behind the last layer's."""
        return replace(self, layers=[*self.layers, self.layers[-1]])

    @cached_property
    def groups(self) -> list[list[int]]:
        """Layer numbers that share pages, in groups of as many layers as the rarest window has."""
        windows = [layer.window for layer in self.layers]
        kinds = [[i for i, w in enumerate(windows) if w == window] for window in dict.fromkeys(windows)]
        size = min(map(len, kinds))
        return [kind[first : first + size] for kind in kinds for first in range(0, len(kind), size)]

    @property
    def windows(self) -> list[int | None]:
        """Of each group."""
        return [self.layers[group[0]].window for group in self.groups]

    @property
    def rows(self) -> Mapping[str, tuple[int, ...]]:
        return self.layers[0].rows

    def tensors(self) -> dict[str, Entry]:
        """What holds one token's rows in one layer: in 8 bits `k` and `k.scale`, in 4 also `k.minimum`."""
        if self.bits is None:
            return {name: (shape, self.dtype) for name, shape in self.rows.items()}
        packed = (entries(name, shape, self.bits) for name, shape in self.rows.items())
        return {name: entry for each in packed for name, entry in each.items()}

    @property
    def page_bytes(self) -> int:
        token = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.tensors().values())
        return PAGE * token * max(map(len, self.groups))

    @property
    def null_pages(self) -> int:
        return 1 if any(self.windows) else 0

    def pages_of(self, length: int, step_tokens: int) -> int:
        """Pages that a sequence of this length holds at the most, when steps compute up to `step_tokens` of it."""
        total = 0
        for window in self.windows:
            # A page more, because a window begins and ends inside a page.
            held = length if window is None else min(length, window + step_tokens + PAGE)
            total += -(-held // PAGE)
        return total


@dataclass(frozen=True)
class LayerCache:
    """One layer's pages: each of the spec's tensors as [pages, PAGE, *shape]."""

    layer: int
    group: int  # whose page table says where a sequence's pages are
    rows: Mapping[str, torch.Tensor]
    spec: CacheSpec

    def write(self, name: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Put rows [tokens, *shape] into their slots."""
        bits = self.spec.bits
        for part, values in ({name: rows} if bits is None else pack(name, rows, bits)).items():
            self.rows[part].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, name: str, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of some pages, [len(pages), PAGE, *shape]."""
        bits = self.spec.bits
        if bits is None:
            return self.rows[name].index_select(0, pages).to(dtype)
        parts = {part: self.rows[part].index_select(0, pages) for part in entries(name, self.spec.rows[name], bits)}
        return unpack(name, parts, self.spec.rows[name][-1], bits, dtype)


class Cache:
    """The pages of all layers: each of the spec's tensors as [layers of a group, pages, PAGE, *shape]."""

    def __init__(self, spec: CacheSpec, pages: int, device: torch.device):
        self.spec, self.pages = spec, pages
        size = max(map(len, spec.groups))
        self.rows = {
            name: _zeros((size, pages, PAGE, *shape), dtype, device) for name, (shape, dtype) in spec.tensors().items()
        }
        places = {layer: place for group in spec.groups for place, layer in enumerate(group)}
        group_of = {layer: number for number, group in enumerate(spec.groups) for layer in group}
        self.layers = [
            LayerCache(i, group_of[i], {name: rows[places[i]] for name, rows in self.rows.items()}, spec)
            for i in range(len(spec.layers))
        ]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of a page."""
        for rows in self.rows.values():
            rows[:, target, :count] = rows[:, source, :count]

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages whose values must not reach a later owner: a masked NaN still poisons a sum."""
        for rows in self.rows.values():
            rows[:, list(pages)] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are untouched pages of the operating system: a large pool costs nothing until it is used.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
