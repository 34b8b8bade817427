"""The weight map: which of a checkpoint's tensors make up each weight of a model, as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

from genwright.errors import UserError

Shape = tuple[int, ...]


class Part(NamedTuple):
    """Rows (axis 0) or columns (axis 1) of a tensor; as the arguments of torch's `narrow`."""

    axis: int
    start: int
    length: int

    def shape(self, whole: Shape) -> Shape:
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])

    def around(self, unit: int, size: int) -> tuple["Part", "Part"]:
        """The whole units, of an axis of `size`, that this part lies in, and where it lies in them."""
        first = self.start // unit * unit
        end = min(-(-(self.start + self.length) // unit) * unit, size)
        return Part(self.axis, first, end - first), Part(self.axis, self.start - first, self.length)


class Source(NamedTuple):
    """A tensor of a checkpoint by its Hugging Face name, and how ranks may share it."""

    name: str
    shape: Shape
    axis: int | None = None  # along which ranks cut it; None is whole on every rank
    unit: int = 1  # rows or columns along the axis that stay together, as those of a head
    expert: int | None = None  # whose it is; expert parallelism gives it whole to one rank
    may_stay_whole: bool = False  # where ranks do not divide the axis

    @property
    def whole(self) -> Part:
        return Part(0, 0, self.shape[0])

    def part(self, rank: int, ranks: int, unit: int = 1) -> Part:
        """What a rank of tensor parallelism gets, in multiples of `unit` too."""
        if self.axis is None or ranks == 1:
            return self.whole
        size, unit = self.shape[self.axis], lcm(self.unit, unit)
        if size % (unit * ranks):
            if self.may_stay_whole:
                return self.whole
            whole = f" of whole heads or groups, {unit} {('rows', 'columns')[self.axis]} each" if unit > 1 else ""
            raise UserError(f"{self.name!r} of shape {list(self.shape)} cannot be cut in {ranks} equal parts{whole}.")
        return Part(self.axis, rank * (size // ranks), size // ranks)

    def owner(self, experts: int, ranks: int) -> int | None:
        """The rank that has this tensor in expert parallelism; None if it is no expert's."""
        return None if self.expert is None else self.expert // max(experts // ranks, 1)


def vocabulary(name: str, size: int, dim: int) -> Source:
    """An embedding or a head: a row per token. Ranks that do not divide the vocabulary have it whole."""
    return Source(name, (size, dim), 0, may_stay_whole=True)


Sources = Sequence[Source]  # fused along the first dimension


@dataclass(frozen=True)
class WeightMap:
    """Weights outside the blocks, and those of each block under a prefix that takes the layer's number."""

    outer: Mapping[str, Sources]
    blocks: Sequence[Mapping[str, Sources]]
    prefix: str
    draft: Mapping[str, Sources] = field(default_factory=dict)  # the multi-token-prediction layer, after the last
    copies: Sources = ()  # of outer weights, which a checkpoint may have beside the multi-token-prediction layer
    exact: frozenset[str] = frozenset()  # weights kept in float32 whatever the model's dtype
    one_added: frozenset[str] = frozenset()  # weights that are stored less one
    unpacked: frozenset[str] = frozenset()  # weights that are dequantized even where others stay packed

    def block(self, layer: int) -> dict[str, Sources]:
        """One layer's weights; that after the last is the multi-token-prediction layer's."""
        prefix = self.prefix.format(layer)
        weights = self.draft if layer == len(self.blocks) else self.blocks[layer]
        return {ours: [s._replace(name=prefix + s.name) for s in sources] for ours, sources in weights.items()}

    def tensors(self, draft: bool = False) -> Iterator[Source]:
        """Every tensor that a checkpoint should have, with or without the multi-token-prediction layer."""
        for sources in self.outer.values():
            yield from sources
        for layer in range(len(self.blocks) + (draft and bool(self.draft))):
            for sources in self.block(layer).values():
                yield from sources
