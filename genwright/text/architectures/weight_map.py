"""The weight map: which of a checkpoint's tensors make up each weight of a model, as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Shape = tuple[int, ...]
Sources = Sequence[tuple[str, Shape]]  # Hugging Face names and shapes, fused along the first dimension


@dataclass(frozen=True)
class WeightMap:
    """Weights outside the blocks, and those of each block under a prefix that takes the layer's number."""

    outer: Mapping[str, Sources]
    blocks: Sequence[Mapping[str, Sources]]
    prefix: str
    draft: Mapping[str, Sources] = field(default_factory=dict)  # the multi-token-prediction layer, after the last
    exact: frozenset[str] = frozenset()  # weights kept in float32 whatever the model's dtype
    one_added: frozenset[str] = frozenset()  # weights that are stored less one
    unpacked: frozenset[str] = frozenset()  # weights that are dequantized even where others stay packed

    def block(self, layer: int) -> dict[str, Sources]:
        """One layer's weights; that after the last is the multi-token-prediction layer's."""
        prefix = self.prefix.format(layer)
        weights = self.draft if layer == len(self.blocks) else self.blocks[layer]
        return {ours: [(prefix + name, shape) for name, shape in sources] for ours, sources in weights.items()}

    def tensors(self, draft: bool = False) -> Iterator[tuple[str, Shape]]:
        """Every tensor that a checkpoint should have, with or without the multi-token-prediction layer."""
        for sources in self.outer.values():
            yield from sources
        for layer in range(len(self.blocks) + (draft and bool(self.draft))):
            for sources in self.block(layer).values():
                yield from sources
