"""CachePlacement: a micro-batch's caches at each layer, whichever tiers its sequences are in."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier
from genwright.text.cache.layout import Cache, LayerCache
from genwright.text.cache.staged_pages import StagedPages, stage_pages
from genwright.text.cache.staging import Staging
from genwright.text.cache.tiered import TieredCache
from genwright.text.ops.placed_ops import Place, PlacedCache, Sparse
from genwright.text.ops.step import Chunk, Step, StepBuffers

MAX_HOST_QUERIES = 8  # of a sequence, for attention on the CPU; prompts are computed on the device
CPU = torch.device("cpu")


class Source(Enum):
    """Where attention finds a sequence's pages."""

    DEVICE = "device"
    HOST = "host"  # attention is computed there
    STAGED = "staged"


@dataclass
class PlacedBatch:
    """A micro-batch's step, and its sequences by place."""

    step: Step
    places: list[tuple[Source, Place]]
    staged: StagedPages | None


class CachePlacement:
    """Places the sequences of each step, and provides the cache of each layer in the order of `begin`."""

    def __init__(
        self,
        cache: TieredCache,
        policy: Policy,
        new_buffers: Callable[[torch.device], StepBuffers],
    ):
        self._cache, self._policy, self._device = cache, policy, cache.memory.device
        self._staging = Staging(cache, policy.overlap)
        self._new_buffers, self._buffers = new_buffers, dict[tuple[object, ...], StepBuffers]()
        self._group_of = {layer: number for number, group in enumerate(cache.spec.groups) for layer in group}

    def place(self, index: int, chunks: Sequence[Chunk], known: Tensor | None) -> PlacedBatch:
        """Write the step of micro-batch number `index`."""
        kinds = [(self._source(chunk), self._is_sparse(chunk)) for chunk in chunks]
        chunks, staged = self._renumber(chunks, [source for source, _ in kinds])
        step = self._fill((index,), chunks, known)
        places = []
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        for kind in dict.fromkeys(kinds):
            source, sparse = kind
            some = [(chunk, end) for chunk, end, each in zip(chunks, ends, kinds, strict=True) if each == kind]
            part, rows = [chunk for chunk, _ in some], None
            if len(part) < len(chunks):
                rows = self._on_device(np.concatenate([np.arange(end - len(c.tokens), end) for c, end in some]))
            place = Place(
                rows,
                step if rows is None else self._fill((index, *kind), part, None),
                self._fill((index, *kind, CPU), part, None, CPU) if source is Source.HOST else None,
                self._sparse(part) if sparse else None,
            )
            places.append((source, place))
        places.sort(key=lambda item: item[0] is Source.HOST)  # the device computes while the CPU does
        return PlacedBatch(step, places, staged)

    def begin(self, layers: Sequence[int], batches: Sequence[PlacedBatch]) -> None:
        """Start to bring over the pages of a step that computes these layers of all its micro-batches."""
        self._staging.begin(layers, [batch.staged for batch in batches if batch.staged is not None])

    def finish(self) -> None:
        """Wait until all new rows are in their tiers."""
        self._staging.finish()

    @contextmanager
    def layer(self, layer: int, batch: PlacedBatch) -> Iterator[LayerCache]:
        """The cache of one layer for one micro-batch; its new rows go to their tiers afterwards."""
        staged = None if batch.staged is None else self._staging.take()
        found = [(place, self._pages(source, layer, staged)) for source, place in batch.places]
        (place, cache), *others = found
        if others or place.on_host is not None or place.sparse is not None:
            cache = PlacedCache(layer, self._group_of[layer], {}, self._cache.spec, found)
        yield cache
        if staged is not None:
            self._staging.put()

    def _pages(self, source: Source, layer: int, staged: LayerCache | None) -> LayerCache:
        if source is Source.STAGED:
            assert staged is not None
            return staged
        tier = self._cache.tiers[self._cache.kinds.index(Tier.GPU if source is Source.DEVICE else Tier.CPU)]
        assert isinstance(tier, Cache)
        return tier.layers[layer]

    def _source(self, chunk: Chunk) -> Source:
        kind = self._cache.kinds[self._cache.tier_of(chunk.tables[0][0])]
        if kind is Tier.GPU:
            return Source.DEVICE
        few = len(chunk.tokens) <= MAX_HOST_QUERIES
        return Source.HOST if kind is Tier.CPU and self._policy.cpu_attention and few else Source.STAGED

    def _is_sparse(self, chunk: Chunk) -> bool:
        """Whether some of its tokens were generated, and read a part of the cache."""
        beyond = chunk.prompt is not None and chunk.start + len(chunk.tokens) > chunk.prompt
        return self._policy.sparsity < 1 and beyond

    def _sparse(self, chunks: Sequence[Chunk]) -> Sparse:
        spans = [np.arange(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
        generated = [span >= (chunk.prompt or 0) for span, chunk in zip(spans, chunks, strict=True)]
        return Sparse(self._policy.sparsity, np.concatenate(spans), np.concatenate(generated))

    def _renumber(self, chunks: Sequence[Chunk], sources: Sequence[Source]) -> tuple[list[Chunk], StagedPages | None]:
        """Chunks with the page numbers of their places."""
        moved = [chunk for chunk, source in zip(chunks, sources, strict=True) if source is Source.STAGED]
        spans = [(np.asarray(chunk.tables), chunk.start, chunk.start + len(chunk.tokens)) for chunk in moved]
        staged = stage_pages(self._cache, spans) if moved else None
        tables = iter([] if staged is None else staged.tables)
        found = []
        for chunk, source in zip(chunks, sources, strict=True):
            if source is Source.STAGED:
                chunk = replace(chunk, tables=next(tables))
            elif source is Source.HOST:
                first = self._cache.first_pages[self._cache.kinds.index(Tier.CPU)]
                chunk = replace(chunk, tables=np.asarray(chunk.tables) - first)
            found.append(chunk)
        return found, staged

    def _fill(
        self, key: tuple[object, ...], chunks: Sequence[Chunk], known: Tensor | None, device: torch.device | None = None
    ) -> Step:
        if key not in self._buffers:
            self._buffers[key] = self._new_buffers(device or self._device)
        return self._buffers[key].fill(chunks, known)

    def _on_device(self, rows: NDArray[np.int64]) -> Tensor:
        found = torch.from_numpy(rows)
        return found if self._device.type == "cpu" else found.pin_memory().to(self._device, non_blocking=True)
