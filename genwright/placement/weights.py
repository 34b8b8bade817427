"""PlacedBlock: one block's weights, the first bytes on the GPU, the next in CPU memory, the rest on disk."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from genwright.placement.disk import ALIGNMENT, round_up
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers
from genwright.quant.packed import Packed, Weight, tensors_of

ATTENTION, MLP = 0, 1  # parts of a block that arrive separately
MLP_WEIGHTS = ("mlp_norm", "post_mlp_norm", "gate_up", "down", "fc1", "fc2", "router", "experts.", "shared.")
TENSOR_ALIGNMENT = 256  # bytes; kernels load vectors


class Entry(NamedTuple):
    """A tensor that stores a weight or a field of a packed one."""

    name: str
    field: str  # empty for a weight that is not packed
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Move(NamedTuple):
    """Bytes of a block that a step brings to a staging buffer."""

    tier: Tier
    source: int  # offset in the block's bytes of that tier
    target: int  # offset in the staging buffer
    size: int


class Layout:
    """Where each tensor of a block lies: attention's first, then the MLP's, in the order of the weight map."""

    def __init__(self, weights: Mapping[str, Weight], policy: Policy) -> None:
        self.templates = {name: _template(weight) for name, weight in weights.items()}
        entries = [Entry(*each) for name, weight in self.templates.items() for each in _fields(name, weight)]
        self.entries = sorted(entries, key=lambda entry: part_of(entry.name))
        self.offsets, end = [], 0
        for entry in self.entries:
            self.offsets.append(end)
            end = round_up(end + entry.nbytes, TENSOR_ALIGNMENT)
        self.size = end
        self.gpu_end = _cut(end, policy.weights_gpu)
        self.cpu_end = max(self.gpu_end, _cut(end, policy.weights_gpu + policy.weights_cpu))
        staged = [i for i, offset in enumerate(self.offsets) if offset + self.entries[i].nbytes > self.gpu_end]
        self.first_staged = staged[0] if staged else len(self.entries)
        # Staging begins at a multiple of the disk's blocks, so that these can be read in place.
        self.origin = self.offsets[staged[0]] // ALIGNMENT * ALIGNMENT if staged else end
        self.staging_size = end - self.origin
        self.parts = self._moves(policy.separate_layers)

    def bounds(self) -> Iterator[tuple[Tier, int, int]]:
        """First and last byte of each tier."""
        yield from ((Tier.GPU, 0, self.gpu_end), (Tier.CPU, self.gpu_end, self.cpu_end))
        yield Tier.DISK, self.cpu_end, self.size

    def _moves(self, separate: bool) -> list[list[Move]]:
        """The moves of each part of the block, one per tier."""
        staged = range(self.first_staged, len(self.entries))
        border = next((self.offsets[i] for i in staged if part_of(self.entries[i].name) == MLP), self.size)
        first = self.offsets[self.first_staged] if staged else self.size
        borders = [first, border, self.size] if separate else [first, self.size]
        parts = []
        for start, stop in pairwise(borders):
            moves = []
            for tier, low, high in self.bounds():
                begin, end = max(start, low), min(stop, high)
                if begin < end:
                    moves.append(Move(tier, begin - low, begin - self.origin, end - begin))
            parts.append(moves)
        return parts


class PlacedBlock(Mapping[str, Weight]):
    """A block's weights. A step uses `views`; as a mapping it reads one weight at a time to CPU memory."""

    def __init__(self, weights: Mapping[str, Weight], policy: Policy, tiers: Tiers, name: str) -> None:
        self.layout = layout = Layout(weights, policy)
        on_disk = layout.size - layout.cpu_end
        self.gpu, self.cpu = tiers.gpu(layout.gpu_end), tiers.cpu(layout.cpu_end - layout.gpu_end)
        self.pinned = tiers.host.pinned
        self.file = tiers.disk(name, on_disk) if on_disk else None
        writes = [write for entry, offset in self._places() for write in self._store(_bytes(weights, entry), offset)]
        for write in writes:
            write.result()

    def _places(self) -> Iterator[tuple[Entry, int]]:
        return zip(self.layout.entries, self.layout.offsets, strict=True)

    def _store(self, data: Tensor, offset: int) -> Iterator[Future[None]]:
        for tier, low, high in self.layout.bounds():
            begin, end = max(offset, low), min(offset + len(data), high)
            if begin >= end:
                continue
            piece = data[begin - offset : end - offset]
            if tier is Tier.DISK:
                assert self.file is not None
                yield self.file.write_from(piece.cpu(), begin - low)
            else:
                (self.gpu if tier is Tier.GPU else self.cpu)[begin - low : end - low].copy_(piece)

    def views(self, staging: Tensor) -> dict[str, Weight]:
        """The weights where a step finds them: on the GPU, or in a staging buffer if a part of them is elsewhere."""
        layout = self.layout
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in layout.templates}
        for index, (entry, offset) in enumerate(self._places()):
            source, start = (staging, offset - layout.origin) if index >= layout.first_staged else (self.gpu, offset)
            tensors[entry.name][entry.field] = _view(source[start : start + entry.nbytes], entry)
        return {name: _assemble(layout.templates[name], fields) for name, fields in tensors.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each weight."""
        found = dict.fromkeys(self.layout.templates, 0)
        for entry in self.layout.entries:
            found[entry.name] += entry.nbytes
        return found

    def __getitem__(self, name: str) -> Weight:
        fields = {}
        for entry, offset in self._places():
            if entry.name == name:
                fields[entry.field] = _view(self._read(offset, entry.nbytes), entry)
        return _assemble(self.layout.templates[name], fields)

    def _read(self, offset: int, size: int) -> Tensor:
        data = torch.empty(size, dtype=torch.uint8)
        for tier, low, high in self.layout.bounds():
            begin, end = max(offset, low), min(offset + size, high)
            if begin >= end:
                continue
            target = data[begin - offset : end - offset]
            if tier is Tier.DISK:
                assert self.file is not None
                self.file.read_into(target, begin - low).result()
            else:
                target.copy_((self.gpu if tier is Tier.GPU else self.cpu)[begin - low : end - low])
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.templates)

    def __len__(self) -> int:
        return len(self.layout.templates)


def weight_bytes(block: Mapping[str, Weight]) -> dict[str, int]:
    """Bytes of each weight, wherever it is."""
    if isinstance(block, PlacedBlock):
        return block.sizes
    return {name: sum(tensor.nbytes for tensor in tensors_of(weight)) for name, weight in block.items()}


def part_of(name: str) -> int:
    """The part of a block that a weight arrives with."""
    return MLP if name.startswith(MLP_WEIGHTS) else ATTENTION


def _cut(size: int, percent: int) -> int:
    return size if percent == 100 else size * percent // 100 // ALIGNMENT * ALIGNMENT


def _template(weight: Weight) -> Weight:
    """A weight's shapes and settings without its values."""
    return weight.map(lambda tensor: tensor.to("meta")) if isinstance(weight, Packed) else weight.to("meta")


def _fields(name: str, weight: Weight) -> Iterator[tuple[str, str, tuple[int, ...], torch.dtype]]:
    tensors = weight.tensors() if isinstance(weight, Packed) else {"": weight}
    for field, tensor in tensors.items():
        yield name, field, tuple(tensor.shape), tensor.dtype


def _bytes(weights: Mapping[str, Weight], entry: Entry) -> Tensor:
    weight = weights[entry.name]
    tensor = weight.tensors()[entry.field] if isinstance(weight, Packed) else weight
    return tensor.contiguous().view(-1).view(torch.uint8)


def _view(data: Tensor, entry: Entry) -> Tensor:
    return data.view(entry.dtype).view(entry.shape)


def _assemble(template: Weight, fields: Mapping[str, Tensor]) -> Weight:
    return replace(template, **fields) if isinstance(template, Packed) else fields[""]
