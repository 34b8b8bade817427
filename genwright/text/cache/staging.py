"""Staging: copies, on the compute device, of one layer's pages of sequences whose cache is in another tier.

While a layer of one micro-batch computes, the pages of the next are brought over, and the rows that the last one wrote
go back to their tier. On a GPU both moves have a stream of their own.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.placement.disk import aligned_empty
from genwright.text.cache.disk_cache import DiskCache, wait
from genwright.text.cache.layout import Cache, CacheSpec, LayerCache
from genwright.text.cache.staged_pages import StagedPages
from genwright.text.cache.tiered import TieredCache

SLOTS = 3  # one is read from its tier, one computes, one is written back


class CopyStream:
    """A stream of a GPU; on a CPU, and without overlap, copies run where they are called."""

    def __init__(self, device: torch.device, overlap: bool):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and overlap else None

    def __enter__(self) -> None:
        self._context = torch.cuda.stream(self._stream)
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)

    def wait(self, event: torch.cuda.Event | None) -> None:
        """What is launched here from now on starts after the event."""
        if event is not None:
            (self._stream or torch.cuda.current_stream(self._device)).wait_event(event)

    def record(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(self._stream or torch.cuda.current_stream(self._device))
        return event


@dataclass
class Slot:
    """Room for one layer's pages of a micro-batch, each of the spec's tensors as [pages, PAGE, *shape]."""

    rows: dict[str, Tensor]
    host: dict[str, Tensor]  # in CPU memory, for the disk; the same tensors if the device is a CPU
    reads: list[Future[None]] = field(default_factory=list)
    writes: list[Future[None]] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    computed: torch.cuda.Event | None = None
    stored: torch.cuda.Event | None = None

    @staticmethod
    def allocate(spec: CacheSpec, pages: int, device: torch.device, disk: bool) -> "Slot":
        on_gpu = device.type == "cuda"
        shapes = {name: ((pages, PAGE, *shape), dtype) for name, (shape, dtype) in spec.tensors().items()}
        host = {name: _host_zeros(*entry, on_gpu) for name, entry in shapes.items()} if disk or not on_gpu else {}
        if not on_gpu:
            return Slot(host, host)
        return Slot({name: torch.zeros(s, dtype=dtype, device=device) for name, (s, dtype) in shapes.items()}, host)


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype, pin: bool) -> Tensor:
    if pin:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)  # whose pages are aligned
    size = int(np.prod(shape)) * dtype.itemsize
    return aligned_empty(size).zero_().view(dtype).view(shape)


class Staging:
    """Brings layers' pages to the device and their new rows back, in the order that `begin` is given."""

    def __init__(self, cache: TieredCache, device: torch.device, overlap: bool = True):
        self._cache, self._device = cache, device
        self._in, self._out = CopyStream(device, overlap), CopyStream(device, overlap)
        self._compute = CopyStream(device, False)
        self._has_disk = any(isinstance(tier, DiskCache) for tier in cache.tiers)
        self._group_of = {layer: number for number, group in enumerate(cache.spec.groups) for layer in group}
        self._slots: list[Slot] = []
        self._capacity = 0  # pages of a slot
        self._work: list[tuple[int, StagedPages]] = []  # layers and micro-batches in the order of use
        self._taken = 0

    def begin(self, layers: Sequence[int], batches: Sequence[StagedPages]) -> None:
        """Start with the first of the micro-batches of the first of the layers."""
        self.finish()
        self._work, self._taken = [(layer, pages) for layer in layers for pages in batches], 0
        self._reserve(max((count for pages in batches for count in pages.pages), default=0))
        for place in range(min(2, len(self._work))):
            self._read(place)
        self._load(0)

    def take(self) -> LayerCache:
        """The next layer's pages of the next micro-batch; the compute stream waits for them."""
        layer, _ = self._work[self._taken]
        slot = self._slots[self._taken % SLOTS]
        self._compute.wait(slot.ready)
        return LayerCache(layer, self._group_of[layer], slot.rows, self._cache.spec)

    def put(self) -> None:
        """What was taken has been computed: bring its new rows back and the next pages over."""
        self._slots[self._taken % SLOTS].computed = self._compute.record()
        self._store(self._taken)
        self._taken += 1
        self._load(self._taken)
        if self._taken >= 2:
            self._write(self._taken - 2)
        self._read(self._taken + 1)

    def finish(self) -> None:
        """Wait until all rows are back in their tiers."""
        if self._taken:
            self._write(self._taken - 1)
        for slot in self._slots:
            for event in (slot.ready, slot.stored):
                if event is not None:
                    event.synchronize()
            wait(slot.reads + slot.writes)
            slot.reads, slot.writes, slot.ready, slot.computed, slot.stored = [], [], None, None, None
        self._work, self._taken = [], 0

    def _reserve(self, pages: int) -> None:
        """Make the slots large enough; no copy is under way."""
        if pages <= self._capacity:
            return
        self._slots.clear()  # frees their memory first
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the allocator knows nothing of the copies' streams
        self._capacity = pages + pages // 4  # sequences grow
        spec, device, disk = self._cache.spec, self._device, self._has_disk
        self._slots = [Slot.allocate(spec, self._capacity, device, disk) for _ in range(SLOTS)]

    def _read(self, place: int) -> None:
        """Start to read from disk what is computed at that place."""
        if place >= len(self._work):
            return
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        wait(slot.writes)
        slot.writes = []
        for run in pages.fetched[self._group_of[layer]]:
            tier = self._cache.tiers[run.tier]
            if isinstance(tier, DiskCache):
                slot.reads += tier.read(layer, run.page, _part(slot.host, run.staged, run.count))

    def _load(self, place: int) -> None:
        """Launch the copies of pages to the device."""
        if place >= len(self._work):
            return
        layer, pages = self._work[place]
        slot, group = self._slots[place % SLOTS], self._group_of[layer]
        wait(slot.reads)
        slot.reads = []
        self._in.wait(slot.computed)
        self._in.wait(slot.stored)
        with self._in:
            for run in pages.fresh[group]:
                for rows in slot.rows.values():
                    rows[run.staged : run.staged + run.count].zero_()
            for run in pages.fetched[group]:
                tier = self._cache.tiers[run.tier]
                if isinstance(tier, Cache):
                    source = _part(tier.layers[layer].rows, run.page, run.count)
                elif slot.host is slot.rows:
                    continue
                else:
                    source = _part(slot.host, run.staged, run.count)
                for name, part in _part(slot.rows, run.staged, run.count).items():
                    part.copy_(source[name], non_blocking=True)
            slot.ready = self._in.record()

    def _store(self, place: int) -> None:
        """Launch the copies of new rows to CPU memory, and of changed pages on their way to disk."""
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        self._out.wait(slot.computed)
        with self._out:
            for rows in pages.written[self._group_of[layer]]:
                tier = self._cache.tiers[rows.tier]
                if isinstance(tier, Cache):
                    for name, source in slot.rows.items():
                        target = tier.layers[layer].rows[name][rows.page, rows.first : rows.stop]
                        target.copy_(source[rows.staged, rows.first : rows.stop], non_blocking=True)
                elif slot.host is not slot.rows:
                    for name, source in slot.rows.items():
                        slot.host[name][rows.staged].copy_(source[rows.staged], non_blocking=True)
            slot.stored = self._out.record()

    def _write(self, place: int) -> None:
        """Start to write changed pages to disk, once they are in CPU memory."""
        if not self._has_disk:
            return
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        if slot.stored is not None:
            slot.stored.synchronize()
        for rows in pages.written[self._group_of[layer]]:
            tier = self._cache.tiers[rows.tier]
            if isinstance(tier, DiskCache):
                slot.writes += tier.write(layer, rows.page, _part(slot.host, rows.staged, 1))


def _part(rows: Mapping[str, Tensor], first: int, count: int) -> dict[str, Tensor]:
    return {name: part[first : first + count] for name, part in rows.items()}
