"""Staging: copies, on the compute device, of one layer's pages of sequences whose cache is in another tier.

While a layer of one micro-batch computes, the pages of the next are brought over, and the rows that the last one wrote
go back to their tier. On a GPU both moves have a stream of their own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.placement.tiers import Tier
from genwright.text.cache.disk_cache import DiskCache, wait
from genwright.text.cache.layout import Cache, LayerCache
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
    host: dict[str, Tensor]  # in CPU memory, for the disk; `rows` if the device is a CPU, or without a disk
    reads: list[Future[None]] = field(default_factory=list)
    writes: list[Future[None]] = field(default_factory=list)
    ready: torch.cuda.Event | None = None
    computed: torch.cuda.Event | None = None
    stored: torch.cuda.Event | None = None
    unwritten: bool = False  # pages that the disk does not have yet

    @staticmethod
    def allocate(cache: TieredCache, pages: int, disk: bool) -> "Slot":
        shapes, memory = cache.spec.page_tensors(pages), cache.memory

        def allocated(new: Callable[[int], Tensor]) -> dict[str, Tensor]:
            sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in shapes.items()}
            return {name: new(sizes[name]).zero_().view(dtype).view(shape) for name, (shape, dtype) in shapes.items()}

        rows = allocated(memory.gpu)
        if not disk or memory.device.type == "cpu":
            return Slot(rows, rows)
        memory.use.hold(Tier.CPU, pages * PAGE * cache.spec.row_bytes)
        return Slot(rows, allocated(cache.host.empty))

    def free(self, cache: TieredCache) -> None:
        cache.memory.use.hold(Tier.GPU, -sum(rows.nbytes for rows in self.rows.values()))
        if self.host is not self.rows:
            cache.memory.use.hold(Tier.CPU, -sum(rows.nbytes for rows in self.host.values()))
            for rows in self.host.values():
                cache.host.free(rows.data_ptr())


class Staging:
    """Brings layers' pages to the device and their new rows back, in the order that `begin` is given."""

    def __init__(self, cache: TieredCache, overlap: bool = True):
        self._cache, self._memory, device = cache, cache.memory, cache.memory.device
        self._in, self._out = CopyStream(device, overlap), CopyStream(device, overlap)
        self._compute = CopyStream(device, False)
        self._has_disk = any(isinstance(tier, DiskCache) for tier in cache.tiers)
        self._sizes = cache.spec.row_sizes
        self._key_sizes = {name: size for name, size in self._sizes.items() if name.split(".")[0] != "v"}
        self._slots: list[Slot] = []
        self._capacity = 0  # pages of a slot
        self._work: list[tuple[int, StagedPages]] = []  # layers and micro-batches in the order of use
        self._follows: list[bool] = []  # of each micro-batch: whether it reads what the one before it writes
        self._taken = 0

    def begin(self, layers: Sequence[int], batches: Sequence[StagedPages]) -> None:
        """Start to load pages, layer by layer and in each layer for one micro-batch after the other."""
        self.finish()
        self._work = [(layer, pages) for layer in layers for pages in batches]
        self._follows = [False, *(second.follows(first) for first, second in pairwise(batches))]
        self._reserve(max((count for pages in batches for count in pages.pages), default=0))
        with self._memory.timed("load_cache"):
            for place in range(min(2, len(self._work))):
                self._read(place)
            self._load(0)

    def take(self) -> LayerCache:
        """The next layer's pages of the next micro-batch; the compute stream waits for them."""
        layer, _ = self._work[self._taken]
        slot = self._slots[self._taken % SLOTS]
        self._compute.wait(slot.ready)
        return LayerCache(layer, self._cache.spec.group_of[layer], slot.rows, self._cache.spec)

    def put(self) -> None:
        """Called when the layer from `take` is computed: store its new rows, and load the next pages."""
        self._slots[self._taken % SLOTS].computed = self._compute.record()
        with self._memory.timed("store_cache"):
            self._store(self._taken)
            self._taken += 1
        with self._memory.timed("load_cache"):
            self._load(self._taken)
        with self._memory.timed("store_cache"):
            if self._taken >= 2:
                self._write(self._taken - 2)
        with self._memory.timed("load_cache"):
            self._read(self._taken + 1)

    def finish(self) -> None:
        """Wait until all rows are back in their tiers."""
        if self._taken:
            self._write(self._taken - 1)
        for slot in self._slots:
            for event in (slot.ready, slot.stored):
                if event is not None:
                    event.synchronize()
            transfers = slot.reads + slot.writes
            slot.reads, slot.writes, slot.ready, slot.computed, slot.stored = [], [], None, None, None
            wait(transfers)
        self._work, self._taken = [], 0

    def close(self) -> None:
        """Wait for what moves; new rows do not go back, because the disk's threads may have ended."""
        self._taken = 0
        self.finish()

    def _reserve(self, pages: int) -> None:
        """Make the slots large enough; no copy is under way."""
        if pages <= self._capacity:
            return
        for slot in self._slots:
            slot.free(self._cache)
        self._slots.clear()  # before new ones are made
        self._capacity, pages = 0, pages + pages // 4  # sequences grow
        while len(self._slots) < SLOTS:
            self._slots.append(Slot.allocate(self._cache, pages, self._has_disk))
        if self._memory.device.type == "cuda":
            torch.cuda.synchronize(self._memory.device)  # the copies' streams do not wait until the slots are zero
        self._capacity = pages

    def _read(self, place: int) -> None:
        """Start to read from disk the pages of the work at index `place`."""
        if place >= len(self._work):
            return
        if not self._follows[place % len(self._follows)]:
            self._start_reads(place)

    def _start_reads(self, place: int) -> None:
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        wait(slot.writes)
        slot.writes = []
        for run in pages.fetched[self._cache.spec.group_of[layer]]:
            tier = self._cache.tiers[run.tier]
            if isinstance(tier, DiskCache):
                slot.reads += tier.read(layer, run.page, _part(slot.host, run.staged, run.count))

    def _load(self, place: int) -> None:
        """Launch the copies of pages to the device."""
        if place >= len(self._work):
            return
        layer, pages = self._work[place]
        slot, group = self._slots[place % SLOTS], self._cache.spec.group_of[layer]
        if self._follows[place % len(self._follows)]:
            before = self._slots[(place - 1) % SLOTS]
            self._write(place - 1)
            wait(before.writes)
            self._in.wait(before.stored)
            self._start_reads(place)
        wait(slot.reads)
        slot.reads = []
        self._in.wait(slot.stored)
        with self._in:
            for run in pages.fresh[group]:
                for rows in slot.rows.values():
                    rows[run.staged : run.staged + run.count].zero_()
            for run in pages.fetched[group]:
                tier = self._cache.tiers[run.tier]
                names = self._count(self._cache.kinds[run.tier], Tier.GPU, run.count * PAGE, run.keys_only)
                if isinstance(tier, Cache):
                    source = _part(tier.layer(layer).rows, run.page, run.count)
                elif slot.host is slot.rows:
                    continue
                else:
                    source = _part(slot.host, run.staged, run.count)
                for name in names:
                    slot.rows[name][run.staged : run.staged + run.count].copy_(source[name], non_blocking=True)
            slot.ready = self._in.record()

    def _store(self, place: int) -> None:
        """Launch the copies of new rows to CPU memory, and of changed pages on their way to disk."""
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        self._out.wait(slot.computed)
        with self._out:
            for rows in pages.written[self._cache.spec.group_of[layer]]:
                tier = self._cache.tiers[rows.tier]
                tokens = rows.count * (rows.stop - rows.first if isinstance(tier, Cache) else PAGE)
                names = self._count(Tier.GPU, self._cache.kinds[rows.tier], tokens, rows.keys_only)
                source = _part(slot.rows, rows.staged, rows.count)
                if isinstance(tier, Cache):
                    target, part = _part(tier.layer(layer).rows, rows.page, rows.count), slice(rows.first, rows.stop)
                    for name in names:
                        target[name][:, part].copy_(source[name][:, part], non_blocking=True)
                elif slot.host is not slot.rows:
                    target = _part(slot.host, rows.staged, rows.count)
                    for name in names:
                        target[name].copy_(source[name], non_blocking=True)
            slot.stored = self._out.record()
        slot.unwritten = self._has_disk

    def _write(self, place: int) -> None:
        """Start to write changed pages to disk, once they are in CPU memory."""
        layer, pages = self._work[place]
        slot = self._slots[place % SLOTS]
        if not slot.unwritten:
            return
        slot.unwritten = False
        if slot.stored is not None:
            slot.stored.synchronize()
        for rows in pages.written[self._cache.spec.group_of[layer]]:
            tier = self._cache.tiers[rows.tier]
            if isinstance(tier, DiskCache):
                slot.writes += tier.write(layer, rows.page, _part(slot.host, rows.staged, rows.count))

    def _count(self, source: Tier, target: Tier, tokens: int, keys_only: bool) -> Sequence[str]:
        """The names of the tensors that are moved, after counting their bytes."""
        sizes = self._key_sizes if keys_only else self._sizes
        self._memory.use.move(source, target, tokens * sum(sizes.values()))
        return list(sizes)


def _part(rows: Mapping[str, Tensor], first: int, count: int) -> dict[str, Tensor]:
    return {name: part[first : first + count] for name, part in rows.items()}
