"""Layout: where each tensor of a block lies in the tiers, and what a step must bring to the GPU."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch

from genwright.placement.disk import ALIGNMENT, round_up
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier
from genwright.quant.packed import Packed, Weight

MLP_WEIGHTS = ("mlp_norm", "post_mlp_norm", "gate_up", "down", "fc1", "fc2", "router", "experts.", "shared.")
EXPERTS = "experts."  # prefix of weights that fuse those of all experts
EXPERTS_PART = 2  # of a block; it is brought by itself
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


class Piece(NamedTuple):
    """A tensor, or one expert's part of it."""

    entry: int
    first: int  # byte of the tensor
    size: int
    offset: int  # in the block's bytes


class Move(NamedTuple):
    """Bytes of a block that a step brings to a staging buffer."""

    tier: Tier
    source: int  # offset in the block's bytes of that tier
    target: int  # offset in the staging buffer
    size: int


class Layout:
    """A block's bytes: attention's tensors, then the MLP's, then expert by expert. The GPU has the first of them.

    A tensor that is wholly on the GPU is used in place. All others are put together in a staging buffer, where the
    experts of a weight are neighbours.
    """

    def __init__(self, weights: Mapping[str, Weight], policy: Policy, experts: int = 0) -> None:
        self.templates = {name: _template(weight) for name, weight in weights.items()}
        entries = [each for name, weight in self.templates.items() for each in _entries(name, weight)]
        self.experts = experts if policy.weights_gpu < 100 and any(e.name.startswith(EXPERTS) for e in entries) else 0
        self.entries = sorted(entries, key=lambda entry: self._part(entry.name, separate=True))
        self.pieces = list(self._pieces())
        self.size = round_up(self.pieces[-1].offset + self.pieces[-1].size, TENSOR_ALIGNMENT)
        self.gpu_end = _cut(self.size, policy.weights_gpu)
        self.cpu_end = max(self.gpu_end, _cut(self.size, policy.weights_gpu + policy.weights_cpu))
        self.staged = self._stage()
        self.part_of = {name: self._part(name, policy.separate_layers) for name in self.templates}
        shared = self.pieces[: len(self.pieces) - self.expert_pieces * self.experts]
        parts: dict[int, list[Piece]] = {}
        for piece in shared:
            parts.setdefault(self.part_of[self.entries[piece.entry].name], []).append(piece)
        self.parts = {part: self.moves(pieces) for part, pieces in parts.items()}  # without the experts

    def _part(self, name: str, separate: bool) -> int:
        """The part of a block that a weight arrives with: attention 0, the MLP 1; experts arrive by themselves."""
        if self.experts and name.startswith(EXPERTS):
            return EXPERTS_PART
        return int(separate and name.startswith(MLP_WEIGHTS))

    def _pieces(self) -> Iterator[Piece]:
        offset, fused = 0, list[int]()
        for index, entry in enumerate(self.entries):
            if self.experts and entry.name.startswith(EXPERTS):
                fused.append(index)
                continue
            yield Piece(index, 0, entry.nbytes, offset)
            offset = round_up(offset + entry.nbytes, TENSOR_ALIGNMENT)
        self.expert_pieces = len(fused)
        for expert in range(self.experts):
            for index in fused:
                size = self.entries[index].nbytes // self.experts
                yield Piece(index, expert * size, size, offset)
                offset = round_up(offset + size, TENSOR_ALIGNMENT)

    def _stage(self) -> dict[int, int]:
        """The offset of each tensor in the staging buffer, if it has one; `staging_size` is that of the buffer."""
        cut = [p for p in self.pieces if p.offset + p.size > self.gpu_end and not self._is_expert(p)]
        # Staging begins at a multiple of the disk's blocks, so that these can be read in place.
        origin = cut[0].offset // ALIGNMENT * ALIGNMENT if cut else 0
        staged = {piece.entry: piece.offset - origin for piece in cut}
        end = round_up(cut[-1].offset + cut[-1].size - origin, TENSOR_ALIGNMENT) if cut else 0
        for piece in self.pieces:
            if self._is_expert(piece) and piece.entry not in staged:
                staged[piece.entry] = end
                end = round_up(end + self.entries[piece.entry].nbytes, TENSOR_ALIGNMENT)
        self.staging_size = end
        return staged

    def _is_expert(self, piece: Piece) -> bool:
        return bool(self.experts) and self.entries[piece.entry].name.startswith(EXPERTS)

    def bounds(self) -> Iterator[tuple[Tier, int, int]]:
        """The first byte of each tier, and that after its last."""
        yield from ((Tier.GPU, 0, self.gpu_end), (Tier.CPU, self.gpu_end, self.cpu_end))
        yield Tier.DISK, self.cpu_end, self.size

    def within(self, offset: int, size: int) -> Iterator[tuple[Tier, int, int, int]]:
        """Some of a block's bytes by tier: the offset in the tier, the first of the bytes, and their number."""
        for tier, low, high in self.bounds():
            begin, end = max(offset, low), min(offset + size, high)
            if begin < end:
                yield tier, begin - low, begin - offset, end - begin

    def expert(self, expert: int) -> list[Piece]:
        """The pieces at an expert's place."""
        first = len(self.pieces) - self.expert_pieces * (self.experts - expert)
        return self.pieces[first : first + self.expert_pieces]

    def moves(self, pieces: Sequence[Piece], places: Sequence[Piece] | None = None) -> list[Move]:
        """How pieces get to a staging buffer, neighbours together; `places` are where they lie, if swapped."""
        found: list[Move] = []
        for piece, place in zip(pieces, places or pieces, strict=True):
            if piece.entry not in self.staged:
                continue
            target = self.staged[piece.entry] + piece.first
            for tier, source, first, size in self.within(place.offset, place.size):
                last = found[-1] if found else None
                gap = source - last.source - last.size if last is not None and last.tier is tier else -1
                if last is not None and 0 <= gap < TENSOR_ALIGNMENT and target + first - last.target - last.size == gap:
                    found[-1] = Move(tier, last.source, last.target, last.size + gap + size)
                else:
                    found.append(Move(tier, source, target + first, size))
        return found


def _cut(size: int, percent: int) -> int:
    return size if percent == 100 else size * percent // 100 // ALIGNMENT * ALIGNMENT


def _template(weight: Weight) -> Weight:
    """A weight's shapes and settings without its values."""
    return weight.map(lambda tensor: tensor.to("meta")) if isinstance(weight, Packed) else weight.to("meta")


def _entries(name: str, weight: Weight) -> Iterator[Entry]:
    tensors = weight.tensors() if isinstance(weight, Packed) else {"": weight}
    for field, tensor in tensors.items():
        yield Entry(name, field, tuple(tensor.shape), tensor.dtype)
