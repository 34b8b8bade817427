"""The weight map: which of a checkpoint's tensors make up each weight of a model, as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Sources = Sequence[tuple[str, Shape]]  # Hugging Face names and shapes, fused along the first dimension


@dataclass(frozen=True)
class WeightMap:
    """Weights outside the blocks, and those of every block under a prefix that takes the layer's number."""

    outer: Mapping[str, Sources]
    layer: Mapping[str, Sources]
    prefix: str

    def block(self, layer: int) -> dict[str, Sources]:
        prefix = self.prefix.format(layer)
        return {ours: [(prefix + name, shape) for name, shape in sources] for ours, sources in self.layer.items()}

    def tensors(self, layers: int) -> Iterator[tuple[str, Shape]]:
        """Every tensor of a checkpoint with so many layers."""
        for part in (self.outer, *(self.block(layer) for layer in range(layers))):
            for sources in part.values():
                yield from sources
