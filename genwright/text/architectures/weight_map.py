"""WeightMap: the checkpoint tensors that make up each weight of a model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

from genwright.errors import UserError

Shape = tuple[int, ...]


class Part(NamedTuple):
    """Rows (axis 0) or columns (axis 1) of a tensor: the arguments of `torch.narrow`."""

    axis: int
    start: int
    length: int

    def shape(self, whole: Shape) -> Shape:
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])

    def align(self, unit: int, size: int) -> tuple["Part", "Part"]:
        """The smallest part in whole units that contains this one, and where this one is within it."""
        first = self.start // unit * unit
        end = min(-(-(self.start + self.length) // unit) * unit, size)
        return Part(self.axis, first, end - first), Part(self.axis, self.start - first, self.length)


class Source(NamedTuple):
    """A tensor of a checkpoint by its Hugging Face name, and how it is split among ranks."""

    name: str
    shape: Shape
    axis: int | None = None  # the axis that ranks split; None if every rank has the whole tensor
    unit: int = 1  # rows or columns that are never split, such as those of a head
    expert: int | None = None  # its expert's index; expert parallelism gives it whole to one rank
    may_stay_whole: bool = False  # if it cannot be split evenly, every rank has it whole
    repeats: bool = False  # if there are fewer units than ranks, several ranks have the same one

    @property
    def whole(self) -> Part:
        return Part(0, 0, self.shape[0])

    def part(self, rank: int, ranks: int, unit: int = 1) -> Part:
        """A rank's part in tensor parallelism, also a multiple of `unit`."""
        if self.axis is None or ranks == 1:
            return self.whole
        size, unit = self.shape[self.axis], lcm(self.unit, unit)
        if self.repeats and size // self.unit < ranks and ranks % (size // self.unit) == 0 and unit == self.unit:
            return Part(self.axis, rank * (size // unit) // ranks * unit, unit)
        if size % (unit * ranks):
            if self.may_stay_whole:
                return self.whole
            units = f" of whole heads or groups of {unit} {('rows', 'columns')[self.axis]}" if unit > 1 else ""
            raise UserError(f"{self.name!r} of shape {list(self.shape)} cannot be split in {ranks} equal parts{units}.")
        return Part(self.axis, rank * (size // ranks), size // ranks)

    def owner(self, experts: int, ranks: int) -> int | None:
        """The rank that has this tensor in expert parallelism; None if it belongs to no expert."""
        return None if self.expert is None else self.expert // max(experts // ranks, 1)


def vocabulary(name: str, size: int, dim: int) -> Source:
    """An embedding or a head: one row per token."""
    return Source(name, (size, dim), 0, may_stay_whole=True)


Sources = Sequence[Source]  # fused along the first dimension


@dataclass(frozen=True)
class WeightMap:
    """Weights outside the blocks, and those of each block under a prefix with the layer's index."""

    outer: Mapping[str, Sources]
    blocks: Sequence[Mapping[str, Sources]]
    prefix: str
    draft: Mapping[str, Sources] = field(default_factory=dict)  # the multi-token-prediction layer
    copies: Sources = ()  # copies of outer weights that may be stored with the multi-token-prediction layer
    exact: frozenset[str] = frozenset()  # weights that are float32 in every model dtype
    one_added: frozenset[str] = frozenset()  # weights that are stored minus one
    unpacked: frozenset[str] = frozenset()  # weights that are never packed

    def block(self, layer: int) -> dict[str, Sources]:
        """A layer's weights; the layer after the last is the multi-token-prediction layer."""
        prefix = self.prefix.format(layer)
        weights = self.draft if layer == len(self.blocks) else self.blocks[layer]
        return {ours: [s._replace(name=prefix + s.name) for s in sources] for ours, sources in weights.items()}

    def tensors(self, draft: bool = False) -> Iterator[Source]:
        """Every tensor of the model, with or without the multi-token-prediction layer."""
        for sources in self.outer.values():
            yield from sources
        for layer in range(len(self.blocks) + (draft and bool(self.draft))):
            for sources in self.block(layer).values():
                yield from sources
