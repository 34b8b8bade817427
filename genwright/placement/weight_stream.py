"""WeightStream: brings blocks to the device that computes, each while the blocks before it compute."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from genwright.placement.block_layout import EXPERTS_PART
from genwright.placement.staging import Slot, Stager, Wait
from genwright.placement.tiers import Tier, Tiers
from genwright.placement.weights import PlacedBlock
from genwright.quant.packed import Weight

DECAY = 0.98  # per step, of how much an expert was used
LEAD = 1.5  # how many times more an expert must be used than one on the GPU to take its place


class Arriving(Mapping[str, Weight]):
    """A block's weights in a slot; whoever reads one waits for the part of the block that it arrives with."""

    def __init__(self, index: int, block: PlacedBlock, slot: Slot, stager: Stager) -> None:
        self.index, self.block, self.slot, self._stager = index, block, slot, stager
        if index not in slot.views:
            slot.views[index] = block.views(slot.buffer)
        self._views = slot.views[index]
        slot.turn += 1
        self._waits: dict[int, Wait] = {
            part: stager.bring(block, slot, moves) for part, moves in block.layout.parts.items()
        }
        self.chosen: set[int] = set()  # experts that were brought because tokens chose them
        self._whole = not block.layout.experts

    def bring_all_experts(self) -> None:
        """Start to bring all experts, whichever the tokens choose."""
        if not self._whole:
            self._waits[EXPERTS_PART] = self._bring(range(self.block.layout.experts))
            self._whole = True

    def bring_experts(self, ids: Tensor) -> None:
        """Bring the experts that a router chose, [tokens, top_k]; the host waits for its choice."""
        if self._whole:
            return
        counts = ids.flatten().bincount(minlength=self.block.layout.experts).tolist()
        self.block.uses = [use + count for use, count in zip(self.block.uses, counts, strict=True)]
        missing = [expert for expert, count in enumerate(counts) if count and expert not in self.chosen]
        self._bring(missing)()
        self.chosen.update(missing)

    def _bring(self, experts: Sequence[int]) -> Wait:
        moves = [move for expert in experts if expert not in self.chosen for move in self.block.expert_moves(expert)]
        return self._stager.bring(self.block, self.slot, moves)

    def wait(self) -> None:
        for part in list(self._waits):
            self._waits.pop(part)()

    def __getitem__(self, name: str) -> Weight:
        weight = self._views[name]
        if self._waits and (wait := self._waits.pop(self.block.layout.part_of[name], None)) is not None:
            wait()
        return weight

    def __contains__(self, name: object) -> bool:
        return name in self._views

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class WeightStream:
    """Two staging buffers take turns: while one block computes, the next one arrives in the other buffer.

    Steps use all blocks in order, so the first blocks of the next step arrive during the end of a step. Experts are
    brought ahead with their block, or those that the tokens choose when they have chosen.
    """

    def __init__(self, blocks: Sequence[PlacedBlock], tiers: Tiers, overlap: bool) -> None:
        self.blocks, self._tiers, self._ahead = blocks, tiers, 2 if overlap else 1
        size = max(block.layout.staging_size for block in blocks)
        disk_size = max(block.layout.size - block.layout.cpu_end for block in blocks)
        self._slots = [Slot(size, disk_size, tiers) for _ in range(self._ahead)]
        self._stager = Stager(tiers, overlap)
        self._overlap, self._on_gpu = overlap, tiers.device.type == "cuda"
        self._by_choice = False
        self._arriving: deque[Arriving] = deque()
        self._turns = 0

    def begin(self, by_choice: bool) -> None:
        """Begin a step; with `by_choice` only the experts that its tokens choose are brought."""
        self._by_choice = by_choice

    def take(self, index: int) -> Arriving:
        """A block's weights, which may be used until `release`."""
        with self._tiers.timed("load_weight"):
            if not self._arriving or self._arriving[0].index != index:
                self._restart(index)
            if not self._by_choice:
                self._arriving[0].bring_all_experts()
            if self._tiers.seconds is not None:
                self._arriving[0].wait()
        return self._arriving[0]

    def release(self, index: int) -> None:
        """The block was launched; its slot takes another one when it has been computed."""
        done = self._arriving.popleft()
        self._stager.free(done.slot)
        if done.chosen and (done.block.pinned or not self._on_gpu):
            self._promote(done)
        if self._overlap:
            self._bring((index + self._ahead) % len(self.blocks))

    def close(self) -> None:
        """End the thread that moves what a GPU cannot copy by itself."""
        self._stager.close()

    def _restart(self, index: int) -> None:
        """Begin with this block: in the first step, without overlap, or after a step that failed."""
        for arriving in self._arriving:
            arriving.wait()
            self._stager.free(arriving.slot)
        self._arriving.clear()
        for ahead in range(self._ahead):
            self._bring((index + ahead) % len(self.blocks))

    def _bring(self, index: int) -> None:
        slot = self._slots[self._turns % len(self._slots)]
        self._turns += 1
        arriving = Arriving(index, self.blocks[index], slot, self._stager)
        if not self._by_choice:
            arriving.bring_all_experts()
        self._arriving.append(arriving)

    def _promote(self, done: Arriving) -> None:
        """Give the place of the least used expert on the GPU to the most used one that was brought from CPU memory."""
        block = done.block
        block.uses = [use * DECAY for use in block.uses]
        tiers = [{move.tier for move in block.expert_moves(expert)} for expert in range(block.layout.experts)]
        on_gpu = [expert for expert, found in enumerate(tiers) if found == {Tier.GPU}]
        on_cpu = [expert for expert in done.chosen if tiers[expert] == {Tier.CPU}]
        if not on_gpu or not on_cpu:
            return
        cold, hot = min(on_gpu, key=block.uses.__getitem__), max(on_cpu, key=block.uses.__getitem__)
        if block.uses[hot] > LEAD * block.uses[cold] + 1:
            pairs = zip(block.expert_moves(cold), block.expert_moves(hot), strict=True)
            self._stager.swap(block, done.slot, list(pairs))
            block.homes[cold], block.homes[hot] = block.homes[hot], block.homes[cold]
