"""CachePlacement: a micro-batch's caches at each layer, whichever tiers its sequences are in."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from genwright.device import upload
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier
from genwright.text.cache.layout import Cache, LayerCache
from genwright.text.cache.staged_pages import Span, StagedPages, stage_pages
from genwright.text.cache.staging import Staging
from genwright.text.cache.tiered import TieredCache
from genwright.text.ops.placed_ops import Place, PlacedCache, PlacedPages, Sparse
from genwright.text.ops.step import Chunk, Step, StepBuffers

MAX_HOST_QUERIES = 8  # of a sequence that reads its cache in CPU memory; prompts are computed on the device
CPU = torch.device("cpu")


class Source(Enum):
    """Where attention finds a sequence's pages."""

    DEVICE = "device"
    HOST = "host"  # attention is computed there
    STAGED = "staged"
    KEYS = "keys"  # keys are staged; sparse attention reads few of the values, in CPU memory


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

    def place(self, index: int, chunks: Sequence[Chunk], known: Tensor | None) -> PlacedBatch:
        """Write the step of micro-batch number `index`."""
        kinds = [(self._source(chunk, sparse := self._is_sparse(chunk)), sparse) for chunk in chunks]
        staged, on_device = self._stage(chunks, [source for source, _ in kinds])
        step = self._fill((index,), on_device, known)
        places = []
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        token_rows = [np.arange(end - len(chunk.tokens), end) for chunk, end in zip(chunks, ends, strict=True)]
        for kind in dict.fromkeys(kinds):
            source, sparse = kind
            some = [i for i, each in enumerate(kinds) if each == kind]
            part, rows = [chunks[i] for i in some], None
            if len(some) < len(chunks):
                rows = upload(torch.from_numpy(np.concatenate([token_rows[i] for i in some])), self._device)
            place = Place(
                rows,
                step if rows is None else self._fill((index, kind), [on_device[i] for i in some], None),
                self._fill_on_host((index, kind, CPU), part) if source in (Source.HOST, Source.KEYS) else None,
                self._sparse(part, CPU if source is Source.HOST else self._device) if sparse else None,
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

    def close(self) -> None:
        self._staging.close()

    @contextmanager
    def layer(self, layer: int, batch: PlacedBatch) -> Iterator[LayerCache]:
        """The cache of one layer for one micro-batch; its new rows go to their tiers afterwards."""
        staged = None if batch.staged is None else self._staging.take()
        found = [self._pages(source, place, layer, staged) for source, place in batch.places]
        first, cache = found[0], found[0].device
        if cache is None or len(found) > 1 or first.host is not None or first.place.sparse is not None:
            cache = PlacedCache(layer, self._cache.spec.group_of[layer], {}, self._cache.spec, found)
        yield cache
        if staged is not None:
            self._staging.put()

    def _pages(self, source: Source, place: Place, layer: int, staged: LayerCache | None) -> PlacedPages:
        if source is Source.DEVICE:
            return PlacedPages(place, self._tier(Tier.GPU).layer(layer), None)
        host = None if source is Source.STAGED else self._tier(Tier.CPU).layer(layer)
        return PlacedPages(place, None if source is Source.HOST else staged, host)

    def _tier(self, tier: Tier) -> Cache:
        cache = self._cache.tiers[self._cache.kinds.index(tier)]
        assert isinstance(cache, Cache)
        return cache

    def _source(self, chunk: Chunk, sparse: bool) -> Source:
        kind = self._cache.kinds[self._cache.tier_of(chunk.tables[0][0])]
        if kind is Tier.GPU:
            return Source.DEVICE
        if kind is Tier.DISK or len(chunk.tokens) > MAX_HOST_QUERIES:
            return Source.STAGED
        if self._policy.cpu_attention:
            return Source.HOST
        return Source.KEYS if sparse and "v" in self._cache.spec.rows else Source.STAGED

    def _is_sparse(self, chunk: Chunk) -> bool:
        """Whether some of its tokens were generated, and read a part of the cache."""
        beyond = chunk.prompt is not None and chunk.start + len(chunk.tokens) > chunk.prompt
        return self._policy.sparsity < 1 and beyond

    def _sparse(self, chunks: Sequence[Chunk], device: torch.device) -> Sparse:
        spans = [np.arange(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
        generated = [span >= (chunk.prompt or 0) for span, chunk in zip(spans, chunks, strict=True)]
        return Sparse(self._policy.sparsity, np.concatenate(spans), np.concatenate(generated), device)

    def _stage(self, chunks: Sequence[Chunk], sources: Sequence[Source]) -> tuple[StagedPages | None, list[Chunk]]:
        """Stage pages that are needed on the device; returns the chunks with the numbers of pages there."""
        moved = [i for i, source in enumerate(sources) if source in (Source.STAGED, Source.KEYS)]
        found = list(chunks)
        if not moved:
            return None, found
        spans = []
        for i in moved:
            tables, start = np.asarray(chunks[i].tables), chunks[i].start
            spans.append(Span(tables, start, start + len(chunks[i].tokens), sources[i] is Source.KEYS))
        staged = stage_pages(self._cache, spans)
        for i, tables in zip(moved, staged.tables, strict=True):
            found[i] = replace(chunks[i], tables=tables)
        return staged, found

    def _fill(self, key: tuple[object, ...], chunks: Sequence[Chunk], known: Tensor | None) -> Step:
        if key not in self._buffers:
            self._buffers[key] = self._new_buffers(self._device)
        return self._buffers[key].fill(chunks, known)

    def _fill_on_host(self, key: tuple[object, ...], chunks: Sequence[Chunk]) -> Step:
        """The step of sequences in CPU memory, with the numbers of their pages there."""
        if key not in self._buffers:
            self._buffers[key] = self._new_buffers(CPU)
        first = self._cache.first_pages[self._cache.kinds.index(Tier.CPU)]
        return self._buffers[key].fill([replace(chunk, tables=np.asarray(chunk.tables) - first) for chunk in chunks])
