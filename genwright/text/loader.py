"""Loader: streams a checkpoint's tensors into the weights that they make up, fused and quantized on the way."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK
from genwright.quant.packed import Packed, Weight
from genwright.text.architectures.weight_map import Sources, WeightMap
from genwright.text.checkpoints import Checkpoint
from genwright.text.checkpoints.random import RandomWeights

LOOKED_UP = ("embed", "positions")  # matrices that nothing is multiplied with
PIECE = {"cpu": 1 << 19, "cuda": 1 << 24}  # elements that are quantized at a time: scratch takes ten times as much


@dataclass
class Loader:
    """Weights in `dtype` on `device`; matrices packed by `quant`, or kept as they are stored where `packed` says so."""

    checkpoint: Checkpoint
    weights: WeightMap
    dtype: torch.dtype
    device: torch.device
    packed: bool = True
    quant: Format | None = None
    progress: Callable[[int, int], None] = lambda done, total: None
    total: int = 0
    done: int = 0

    def outer(self) -> dict[str, Sources]:
        """The weights of no layer; a head that shares the embedding is one of them if it is packed and that is not."""
        outer, embed = dict(self.weights.outer), self.weights.outer["embed"]
        if "head" not in outer and self.form("head", embed) is not None:
            outer["head"] = embed
        return outer

    def part(self, part: Mapping[str, Sources]) -> dict[str, Any]:
        return {name: self._weight(name, sources) for name, sources in part.items()}

    def bytes(self, part: Mapping[str, Sources]) -> int:
        """What a part takes once it is loaded."""
        total = 0
        for name, sources in part.items():
            form, wide = self.form(name, sources), self._wide(name).itemsize
            total += sum(prod(shape) * wide if form is None else form.bytes(shape) for _, shape in sources)
        return total

    def form(self, name: str, sources: Sources) -> Format | None:
        """The format that a weight is packed in; None where it is not."""
        kept = {*LOOKED_UP, *self.weights.unpacked, *self.weights.exact}
        if name in kept or any(len(shape) != 2 for _, shape in sources):
            return None
        stored = {self.checkpoint.format(source) for source, _ in sources}
        single = stored.pop() if len(stored) == 1 else None
        if self.quant is not None:
            return self.quant.of_head(single) if name == "head" else self.quant
        return single if self.packed else None

    def _weight(self, name: str, sources: Sources) -> Weight:
        form = self.form(name, sources)
        if form is None:
            fused = self._fuse(sources, self._wide(name))
            return fused.add_(1) if name in self.weights.one_added else fused
        parts: list[Packed] = []
        for source, _ in sources:
            parts += quantized(self.checkpoint, source, form, self.device)
            self._tell()
        return type(parts[0]).cat(parts)

    def _fuse(self, sources: Sources, dtype: torch.dtype) -> torch.Tensor:
        rows = sum(shape[0] for _, shape in sources)
        target = torch.empty((rows, *sources[0][1][1:]), dtype=dtype, device=self.device)
        first = 0
        for name, shape in sources:
            # Copying widens what is stored plainly; doing so before would hold it twice.
            plain = self.checkpoint.format(name) is None and not isinstance(self.checkpoint, RandomWeights)
            tensor = _tensor(self.checkpoint, name, None if plain else dtype, self.device)
            target[first : first + shape[0]].copy_(tensor)
            first += shape[0]
            self._tell()
        return target

    def _wide(self, name: str) -> torch.dtype:
        return torch.float32 if name in self.weights.exact else self.dtype

    def _tell(self) -> None:
        self.done += 1
        self.progress(self.done, self.total)


def quantized(checkpoint: Checkpoint, name: str, form: Format, device: torch.device) -> Iterator[Packed]:
    """A matrix in a format, some rows at a time: as it is stored if that is the format, else rounded on the device."""
    stored = checkpoint.format(name)
    if stored == form:
        yield checkpoint.packed(name).map(lambda tensor: tensor.to(device))
        return
    wide = _tensor(checkpoint, name, None if stored is None else torch.float32, device)
    for rows in wide.split(max(1, PIECE.get(device.type, PIECE["cuda"]) // wide.shape[1] // BLOCK) * BLOCK):
        yield form.quantize(rows.to(device))


def _tensor(checkpoint: Checkpoint, name: str, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
    """On the device if it is drawn: a GPU does that a thousand times faster."""
    if isinstance(checkpoint, RandomWeights):
        return checkpoint.tensor(name, dtype, device)
    return checkpoint.tensor(name, dtype)
