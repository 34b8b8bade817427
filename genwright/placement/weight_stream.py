"""WeightStream: brings blocks to the device that computes, each while the blocks before it compute."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from genwright.placement.tiers import Tier, Tiers
from genwright.placement.weights import Move, PlacedBlock, part_of
from genwright.quant.packed import Weight

Wait = Callable[[], None]


class Arriving(Mapping[str, Weight]):
    """A block's weights; whoever reads one waits for the part of the block that it arrives with."""

    def __init__(self, views: Mapping[str, Weight], waits: Sequence[Wait]) -> None:
        self._views, self._waits = views, dict(enumerate(waits))

    def __getitem__(self, name: str) -> Weight:
        weight = self._views[name]
        if self._waits and (wait := self._waits.pop(min(part_of(name), max(self._waits)), None)) is not None:
            wait()
        return weight

    def __contains__(self, name: object) -> bool:
        return name in self._views

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class Slot:
    """A staging buffer of the device."""

    def __init__(self, size: int, disk_size: int, tiers: Tiers) -> None:
        self.buffer = tiers.gpu(size)
        through_host = disk_size and tiers.device.type == "cuda"
        self.host = tiers.cpu(disk_size) if through_host else None  # what is read from disk passes through it
        self.sent: list[tuple[int, torch.cuda.Event]] = []  # copies out of `host`, with the number of their turn
        self.free: torch.cuda.Event | None = None  # after the last use of `buffer`
        self.views: dict[int, dict[str, Weight]] = {}  # of each block, made once because kernels cache by weight


class WeightStream:
    """Two staging buffers take turns: while one block computes, the next one arrives in the other buffer.

    Steps use all blocks in order, so the first blocks of the next step arrive during the end of a step. On a GPU the
    host never waits: streams wait for each other by events. Only what comes from disk or from pageable memory is moved
    by a thread, for which the host waits.
    """

    def __init__(self, blocks: Sequence[PlacedBlock], tiers: Tiers, overlap: bool) -> None:
        self.blocks, self._tiers, self._ahead = blocks, tiers, 2 if overlap else 0
        size = max(block.layout.staging_size for block in blocks)
        disk_size = max(block.layout.size - block.layout.cpu_end for block in blocks)
        self._slots = [Slot(size, disk_size, tiers) for _ in range(max(1, self._ahead))]
        self._on_gpu = tiers.device.type == "cuda"
        self._stream = torch.cuda.Stream(tiers.device) if self._on_gpu and overlap else None
        self._disk_stream = torch.cuda.Stream(tiers.device) if self._on_gpu else None
        self._thread = ThreadPoolExecutor(1, "weights")
        self._arriving: deque[tuple[int, Slot, Sequence[Wait]]] = deque()
        self._turns = 0

    def take(self, index: int) -> Mapping[str, Weight]:
        """A block's weights, which may be used until `release`."""
        if not self._arriving or self._arriving[0][0] != index:
            self._restart(index)
        _, slot, waits = self._arriving[0]
        if index not in slot.views:
            slot.views[index] = self.blocks[index].views(slot.buffer)
        return Arriving(slot.views[index], waits)

    def release(self, index: int) -> None:
        """The block was launched; its buffer takes another one when it has been computed."""
        _, slot, _ = self._arriving.popleft()
        self._free(slot)
        if self._ahead:
            self._bring((index + self._ahead) % len(self.blocks))

    def _restart(self, index: int) -> None:
        """Begin with this block: in the first step, without overlap, or after a step that failed."""
        for _, slot, waits in self._arriving:
            _call(waits)
            self._free(slot)
        self._arriving.clear()
        for ahead in range(max(1, self._ahead)):
            self._bring((index + ahead) % len(self.blocks))

    def _free(self, slot: Slot) -> None:
        if self._on_gpu:
            slot.free = torch.cuda.current_stream(self._tiers.device).record_event()

    def _bring(self, index: int) -> None:
        block, slot = self.blocks[index], self._slots[self._turns % len(self._slots)]
        self._turns += 1
        self._arriving.append((index, slot, [self._start(block, slot, moves) for moves in block.layout.parts]))

    def _start(self, block: PlacedBlock, slot: Slot, moves: list[Move]) -> Wait:
        """Start to bring a part of a block; the result waits for it."""
        for move in moves:
            self._tiers.use.move(move.tier, Tier.GPU, move.size)
        if not self._on_gpu:
            return partial(_call, self._copy_on_cpu(block, slot, moves))
        slow = [move for move in moves if move.tier is Tier.DISK or (move.tier is Tier.CPU and not block.pinned)]
        later = self._thread.submit(self._send, block, slot, slow, self._turns) if slow else None
        event = self._copy(block, slot, [move for move in moves if move not in slow], self._stream)
        return partial(self._wait, event, later)

    def _copy_on_cpu(self, block: PlacedBlock, slot: Slot, moves: list[Move]) -> list[Wait]:
        reads: list[Wait] = []
        for tier, source, target, size in moves:
            place = slot.buffer[target : target + size]
            if tier is Tier.DISK:
                assert block.file is not None
                reads.append(block.file.read_into(place, source).result)
            else:
                place.copy_((block.gpu if tier is Tier.GPU else block.cpu)[source : source + size])
        return reads

    def _copy(
        self, block: PlacedBlock, slot: Slot, moves: list[Move], stream: torch.cuda.Stream | None
    ) -> torch.cuda.Event:
        """Copy from the GPU, from CPU memory and from the slot's host buffer, after the slot's last use."""
        with torch.cuda.stream(stream):
            current = torch.cuda.current_stream(self._tiers.device)
            if slot.free is not None:
                current.wait_event(slot.free)
            for tier, source, target, size in moves:
                memory: Tensor | None = {Tier.GPU: block.gpu, Tier.CPU: block.cpu, Tier.DISK: slot.host}[tier]
                assert memory is not None
                slot.buffer[target : target + size].copy_(memory[source : source + size], non_blocking=True)
            return current.record_event()

    def _send(self, block: PlacedBlock, slot: Slot, moves: list[Move], turn: int) -> torch.cuda.Event:
        """In a thread: read a part of a block from disk, and copy it to the GPU."""
        with torch.cuda.device(self._tiers.device):
            for before, event in slot.sent:
                if before != turn:
                    event.synchronize()
            reads: list[Wait] = []
            for tier, source, _, size in moves:
                if tier is Tier.DISK:
                    assert block.file is not None and slot.host is not None
                    reads.append(block.file.read_into(slot.host[source : source + size], source).result)
            _call(reads)
            event = self._copy(block, slot, moves, self._disk_stream)
        slot.sent = [(turn, event), *(each for each in slot.sent if each[0] == turn)]
        return event

    def _wait(self, event: torch.cuda.Event, later: "Future[torch.cuda.Event] | None") -> None:
        stream = torch.cuda.current_stream(self._tiers.device)
        stream.wait_event(event)
        if later is not None:
            stream.wait_event(later.result())


def _call(waits: Sequence[Wait]) -> None:
    for wait in waits:
        wait()
