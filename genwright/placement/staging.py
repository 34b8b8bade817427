"""Stager: copies bytes of a block to a staging buffer of the device that computes, without making the host wait."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from genwright.placement.block_layout import Move
from genwright.placement.tiers import Tier, Tiers
from genwright.placement.weights import PlacedBlock
from genwright.quant.packed import Weight

Wait = Callable[[], None]


class Slot:
    """A staging buffer of the device."""

    def __init__(self, size: int, disk_size: int, tiers: Tiers) -> None:
        self.buffer = tiers.gpu(size)
        through_host = disk_size and tiers.device.type == "cuda"
        self.host = tiers.cpu(disk_size) if through_host else None  # what is read from disk passes through it
        self.turn = 0  # counts the blocks that used the slot
        self.sent: list[tuple[int, torch.cuda.Event]] = []  # copies out of `host`, with their turn
        self.free: torch.cuda.Event | None = None  # after the last use of `buffer`
        self.views: dict[int, dict[str, Weight]] = {}  # of each block, made once because kernels cache by weight


class Stager:
    """On a GPU, streams wait for each other by events. A thread moves what is on disk or in pageable memory.

    Without a GPU, memory is copied at once, and the disk is read by threads.
    """

    def __init__(self, tiers: Tiers, overlap: bool) -> None:
        self._tiers, self._on_gpu = tiers, tiers.device.type == "cuda"
        self._stream = torch.cuda.Stream(tiers.device) if self._on_gpu and overlap else None
        self._disk_stream = torch.cuda.Stream(tiers.device) if self._on_gpu else None
        self._thread = ThreadPoolExecutor(1, "weights")

    def bring(self, block: PlacedBlock, slot: Slot, moves: Sequence[Move]) -> Wait:
        """Start to bring some of a block's bytes; the result waits for them."""
        for move in moves:
            self._tiers.use.move(move.tier, Tier.GPU, move.size)
        if not self._on_gpu:
            return partial(_finish, self._copy_on_cpu(block, slot, moves))
        slow = [move for move in moves if move.tier is Tier.DISK or (move.tier is Tier.CPU and not block.pinned)]
        later = self._thread.submit(self._send, block, slot, slow, slot.turn) if slow else None
        event = self._copy(block, slot, [move for move in moves if move not in slow], self._stream)
        return partial(self._wait, event, later)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def free(self, slot: Slot) -> None:
        """What was launched so far may use the slot, nothing after it does."""
        if self._on_gpu:
            slot.free = torch.cuda.current_stream(self._tiers.device).record_event()

    def swap(self, block: PlacedBlock, slot: Slot, pairs: Sequence[tuple[Move, Move]]) -> None:
        """Exchange bytes on the GPU, the first of each pair, with bytes of CPU memory that the slot has a copy of."""
        with torch.cuda.stream(self._stream):
            if self._on_gpu and slot.free is not None:
                torch.cuda.current_stream(self._tiers.device).wait_event(slot.free)
            for gpu, cpu in pairs:
                resident = block.gpu[gpu.source : gpu.source + gpu.size]
                block.cpu[cpu.source : cpu.source + cpu.size].copy_(resident, non_blocking=True)
                resident.copy_(slot.buffer[cpu.target : cpu.target + cpu.size])
                self._tiers.use.move(Tier.GPU, Tier.CPU, gpu.size)
            self.free(slot)

    def _copy_on_cpu(self, block: PlacedBlock, slot: Slot, moves: Sequence[Move]) -> list[Future[None]]:
        reads = []
        for tier, source, target, size in moves:
            place = slot.buffer[target : target + size]
            if tier is Tier.DISK:
                assert block.file is not None
                reads.append(block.file.read_into(place, source))
            else:
                place.copy_(block.memory(tier)[source : source + size])
        return reads

    def _copy(
        self, block: PlacedBlock, slot: Slot, moves: Sequence[Move], stream: torch.cuda.Stream | None
    ) -> torch.cuda.Event:
        """Copy from the GPU, from CPU memory and from the slot's host buffer, after the slot's last use."""
        with torch.cuda.stream(stream):
            current = torch.cuda.current_stream(self._tiers.device)
            if slot.free is not None:
                current.wait_event(slot.free)
            for tier, source, target, size in moves:
                memory: Tensor | None = slot.host if tier is Tier.DISK else block.memory(tier)
                assert memory is not None
                slot.buffer[target : target + size].copy_(memory[source : source + size], non_blocking=True)
            return current.record_event()

    def _send(self, block: PlacedBlock, slot: Slot, moves: Sequence[Move], turn: int) -> torch.cuda.Event:
        """In a thread: read some of a block's bytes from disk, and copy them to the GPU."""
        with torch.cuda.device(self._tiers.device):
            for before, event in slot.sent:
                if before != turn:
                    event.synchronize()  # the copy of another block, whose bytes are about to be overwritten
            reads = []
            for tier, source, _, size in moves:
                if tier is Tier.DISK:
                    assert block.file is not None and slot.host is not None
                    reads.append(block.file.read_into(slot.host[source : source + size], source))
            _finish(reads)
            event = self._copy(block, slot, moves, self._disk_stream)
        slot.sent = [(turn, event), *(each for each in slot.sent if each[0] == turn)]
        return event

    def _wait(self, event: torch.cuda.Event, later: "Future[torch.cuda.Event] | None") -> None:
        stream = torch.cuda.current_stream(self._tiers.device)
        stream.wait_event(event)
        if later is not None:
            stream.wait_event(later.result())


def _finish(reads: Sequence[Future[None]]) -> None:
    for read in reads:
        read.result()
