"""PlacedBlock: one block's weights, the first bytes on the GPU, the next in CPU memory, the rest on disk."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import torch
from torch import Tensor

from genwright.placement.block_layout import Entry, Layout, Move
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers
from genwright.quant.packed import Packed, Weight


class PlacedBlock(Mapping[str, Weight]):
    """A block's weights. A step uses `views`; as a mapping it reads one weight at a time to CPU memory."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        policy: Policy,
        tiers: Tiers,
        name: str,  # of its file
        experts: int = 0,
    ) -> None:
        self.layout = layout = Layout(weights, policy, experts)
        self.homes = list(range(layout.experts))  # the place of each expert; the most used ones move to the GPU's
        self.uses = [0.0] * layout.experts  # how often tokens chose each, of late
        on_disk = layout.size - layout.cpu_end
        self.gpu, self.cpu = tiers.gpu(layout.gpu_end), tiers.cpu(layout.cpu_end - layout.gpu_end)
        self.pinned = tiers.host.pinned
        self.file = tiers.disk(name, on_disk) if on_disk else None
        writes: list[Future[None]] = []
        for piece in layout.pieces:
            data = _bytes(weights, layout.entries[piece.entry])[piece.first : piece.first + piece.size]
            writes += self._store(data, piece.offset)
        for write in writes:
            write.result()

    def _store(self, data: Tensor, offset: int) -> Iterator[Future[None]]:
        for tier, start, first, size in self.layout.within(offset, len(data)):
            piece = data[first : first + size]
            if tier is Tier.DISK:
                assert self.file is not None
                yield self.file.write_from(piece.cpu(), start)
            else:
                self.memory(tier)[start : start + size].copy_(piece)

    def memory(self, tier: Tier) -> Tensor:
        """The block's bytes in a memory."""
        return self.gpu if tier is Tier.GPU else self.cpu

    def expert_moves(self, expert: int) -> list[Move]:
        return self.layout.moves(self.layout.expert(expert), self.layout.expert(self.homes[expert]))

    def views(self, staging: Tensor) -> dict[str, Weight]:
        """The weights where a step finds them: on the GPU, or in a staging buffer if a part of them is elsewhere."""
        layout = self.layout
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in layout.templates}
        offsets = {piece.entry: piece.offset for piece in reversed(layout.pieces)}
        for index, entry in enumerate(layout.entries):
            source, start = (staging, layout.staged[index]) if index in layout.staged else (self.gpu, offsets[index])
            tensors[entry.name][entry.field] = _view(source[start : start + entry.nbytes], entry)
        return {name: _assemble(layout.templates[name], fields) for name, fields in tensors.items()}

    def __getitem__(self, name: str) -> Weight:
        layout = self.layout
        fields = {
            entry.field: torch.empty(entry.nbytes, dtype=torch.uint8) for entry in layout.entries if entry.name == name
        }
        for index, piece in enumerate(layout.pieces):
            entry = layout.entries[piece.entry]
            if entry.name == name:
                self._read(fields[entry.field][piece.first : piece.first + piece.size], self._home(index))
        whole = {e.field: _view(fields[e.field], e) for e in layout.entries if e.name == name}
        return _assemble(layout.templates[name], whole)

    def _home(self, index: int) -> int:
        """Where a piece lies."""
        layout = self.layout
        place = index - (len(layout.pieces) - layout.expert_pieces * layout.experts)
        if place < 0:
            return layout.pieces[index].offset
        expert, number = divmod(place, layout.expert_pieces)
        return layout.expert(self.homes[expert])[number].offset

    def _read(self, target: Tensor, offset: int) -> None:
        for tier, start, first, size in self.layout.within(offset, len(target)):
            piece = target[first : first + size]
            if tier is Tier.DISK:
                assert self.file is not None
                self.file.read_into(piece, start).result()
            else:
                piece.copy_(self.memory(tier)[start : start + size])

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.templates)

    def __len__(self) -> int:
        return len(self.layout.templates)


def templates(block: Mapping[str, Weight]) -> Mapping[str, Weight]:
    """The weights for their shapes and sizes; those of a placed block have no values, so that nothing is read."""
    return block.layout.templates if isinstance(block, PlacedBlock) else block


def _bytes(weights: Mapping[str, Weight], entry: Entry) -> Tensor:
    weight = weights[entry.name]
    tensor = weight.tensors()[entry.field] if isinstance(weight, Packed) else weight
    return tensor.contiguous().view(-1).view(torch.uint8)


def _view(data: Tensor, entry: Entry) -> Tensor:
    return data.view(entry.dtype).view(entry.shape)


def _assemble(template: Weight, fields: Mapping[str, Tensor]) -> Weight:
    return template.with_tensors(fields) if isinstance(template, Packed) else fields[""]
