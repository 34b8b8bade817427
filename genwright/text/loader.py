"""Loader: a checkpoint's tensors become an architecture's weights, whole or a rank's part, block by block."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch

from genwright.kernels import PAGE
from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK
from genwright.quant.packed import Packed, Weight, tensors_of
from genwright.text.architectures.protocol import Architecture
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part, Source, Sources, WeightMap
from genwright.text.checkpoints.check_tensors import check_tensors
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.random import RandomWeights
from genwright.text.config import LOCAL_ROPE, ROPE, ModelConfig
from genwright.text.ops.protocol import Weights
from genwright.text.ops.rope import cos_sin, frequencies
from genwright.text.ops.step import RopeTables

LOOKED_UP = ("embed", "positions")  # matrices that nothing is multiplied with
PIECE = {"cpu": 1 << 19, "cuda": 1 << 24}  # elements that are quantized at a time: scratch takes ten times as much


@dataclass(frozen=True)
class Model:
    """A loaded model: its architecture's functions, and the weights that they read."""

    cfg: ModelConfig
    architecture: Architecture
    outer: dict[str, Any]  # tensors; of matrices also packed weights
    blocks: list[dict[str, Any]]
    dtype: torch.dtype
    device: torch.device
    max_context: int  # in whole pages
    rope_tables: dict[str, RopeTables]

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decoding step of one token reads: no embedding but a row, of experts its own."""
        outer = {name: weight for name, weight in self.outer.items() if name not in LOOKED_UP}
        moe = self.cfg.moe
        share = {"experts.gate_up": moe.top_k / moe.experts, "experts.down": moe.top_k / moe.experts} if moe else {}
        return int(
            sum(
                tensor.nbytes * share.get(name, 1.0)
                for part in (outer, *self.blocks)
                for name, weight in part.items()
                for tensor in tensors_of(weight)
            )
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells this model from others and from the same with other weights, by 64 values of every tensor."""
        digest = hashlib.sha256(repr((self.cfg, self.dtype)).encode())
        for part in (self.outer, *self.blocks):
            for name in sorted(part):
                for tensor in tensors_of(part[name]):
                    values = tensor.flatten()[:: max(tensor.numel() // 64, 1)].contiguous()
                    digest.update(values.view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()


@dataclass
class Loader:
    """Weights in `dtype` on `device`; matrices packed by `quant`, or kept as they are stored where `packed` says so.

    Of several ranks it loads one's part, as the weight map says. Ranks share each expert, or with `expert_parallel`
    each has some experts whole.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    packed: bool = True
    quant: Format | None = None
    progress: Callable[[int, int], None] = lambda done, total: None  # is told tensors done and in all
    rank: int = 0
    ranks: int = 1
    expert_parallel: bool = False
    _done: int = 0
    _total: int = 0

    @cached_property
    def weights(self) -> WeightMap:
        return architecture(self.checkpoint.config).weight_map(self.checkpoint.config)

    def model(self, max_context: int) -> Model:
        """All blocks but the multi-token-prediction layer."""
        check_tensors(self.checkpoint)
        cfg = self.checkpoint.config
        blocks = [self.outer_sources(), *(self.weights.block(layer) for layer in range(cfg.layers))]
        self._done, self._total = 0, sum(len(self._own(sources)) for block in blocks for sources in block.values())
        outer, *loaded = (self.load(block) for block in blocks)
        outer.setdefault("head", outer["embed"])
        context, tables = -(-max_context // PAGE) * PAGE, rope_tables(cfg, max_context, self.device)
        return Model(cfg, architecture(cfg), outer, loaded, self.dtype, self.device, context, tables)

    def block(self, layer: int) -> dict[str, Any]:
        """One layer's weights; that after the last is the multi-token-prediction layer."""
        return self.load(self.weights.block(layer))

    def block_bytes(self, layer: int) -> int:
        """What a block takes once it is loaded."""
        return self.bytes(self.weights.block(layer))

    def total_bytes(self, draft: bool = False) -> int:
        """What all weights take once they are loaded, with the multi-token-prediction layer or without."""
        check_tensors(self.checkpoint, draft)
        layers = range(self.checkpoint.config.layers + draft)
        return self.bytes(self.outer_sources()) + sum(map(self.block_bytes, layers))

    def outer_sources(self) -> dict[str, Sources]:
        """The weights of no layer; a head that shares the embedding is one of them if it is packed and that is not."""
        outer, embed = dict(self.weights.outer), self.weights.outer["embed"]
        if "head" not in outer and self.form("head", embed) is not None:
            outer["head"] = embed
        return outer

    def load(self, block: Mapping[str, Sources]) -> dict[str, Any]:
        return {name: self._weight(name, self._own(sources)) for name, sources in block.items()}

    def bytes(self, block: Mapping[str, Sources]) -> int:
        """What weights take once they are loaded."""
        total = 0
        for name, sources in block.items():
            form, wide = self.form(name, sources), self._wide(name).itemsize
            shapes = [self._part(source, form).shape(source.shape) for source in self._own(sources)]
            total += sum(prod(shape) * wide if form is None else form.bytes(shape) for shape in shapes)
        return total

    def form(self, name: str, sources: Sources) -> Format | None:
        """The format that a weight is packed in; None where it is not."""
        kept = {*LOOKED_UP, *self.weights.unpacked, *self.weights.exact}
        if name in kept or any(len(source.shape) != 2 for source in sources):
            return None
        stored = {self.checkpoint.format(source.name) for source in sources}
        single = stored.pop() if len(stored) == 1 else None
        if self.quant is not None:
            return self.quant.of_head(single) if name == "head" else self.quant
        return single if self.packed else None

    def _own(self, sources: Sources) -> Sources:
        """Without the experts of other ranks."""
        moe = self.checkpoint.config.moe
        if not self.expert_parallel or moe is None:
            return sources
        return [source for source in sources if source.owner(moe.experts, self.ranks) in (None, self.rank)]

    def _part(self, source: Source, form: Format | None) -> Part:
        if self.expert_parallel and source.expert is not None:
            return source.whole
        return source.part(self.rank, self.ranks, form.unit(source.axis or 0) if form else 1)

    def _weight(self, name: str, sources: Sources) -> Weight:
        form = self.form(name, sources)
        if form is None:
            fused = self._fuse(sources, self._wide(name))
            return fused.add_(1) if name in self.weights.one_added else fused
        parts: list[Packed] = []
        for source in sources:
            parts += quantized(self.checkpoint, source.name, form, self.device, self._part(source, form))
            self._tell()
        return type(parts[0]).cat(parts)

    def _fuse(self, sources: Sources, dtype: torch.dtype) -> torch.Tensor:
        parts = [self._part(source, None) for source in sources]
        shapes = [part.shape(source.shape) for source, part in zip(sources, parts, strict=True)]
        rows = [shape[0] for shape in shapes]
        fused = torch.empty((sum(rows), *shapes[0][1:]), dtype=dtype, device=self.device)
        for source, part, target in zip(sources, parts, fused.split(rows), strict=True):
            # Copying widens what is stored plainly; doing so before would hold it twice.
            plain = self.checkpoint.format(source.name) is None and not isinstance(self.checkpoint, RandomWeights)
            target.copy_(_tensor(self.checkpoint, source.name, None if plain else dtype, self.device, part))
            self._tell()
        return fused

    def _tell(self) -> None:
        self._done += 1
        self.progress(self._done, self._total)

    def _wide(self, name: str) -> torch.dtype:
        return torch.float32 if name in self.weights.exact else self.dtype


def move(block: Weights, device: torch.device) -> dict[str, Any]:
    """A block's weights on a device; those that are there already are not copied."""

    def to(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    return {name: weight.map(to) if isinstance(weight, Packed) else to(weight) for name, weight in block.items()}


def quantized(
    checkpoint: Checkpoint, name: str, form: Format, device: torch.device, part: Part | None = None
) -> Iterator[Packed]:
    """A matrix in a format, some rows at a time: as it is stored if that is the format, else rounded on the device."""
    stored = checkpoint.format(name)
    if stored == form:
        yield checkpoint.packed(name, part).map(lambda tensor: tensor.to(device))
        return
    wide = _tensor(checkpoint, name, None if stored is None else torch.float32, device, part)
    for rows in wide.split(max(1, PIECE.get(device.type, PIECE["cuda"]) // wide.shape[1] // BLOCK) * BLOCK):
        yield form.quantize(rows.to(device))


def _tensor(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype | None, device: torch.device, part: Part | None
) -> torch.Tensor:
    """On the device if it is drawn: a GPU does that a thousand times faster."""
    if isinstance(checkpoint, RandomWeights):
        return checkpoint.tensor(name, dtype, part, device)
    return checkpoint.tensor(name, dtype, part)


def rope_tables(cfg: ModelConfig, max_context: int, device: torch.device) -> dict[str, RopeTables]:
    """cos and sin of whole pages of positions, for each kind of RoPE.

    They are computed page by page, so that their bits do not depend on how many pages there are.
    """
    tables: dict[str, RopeTables] = {}
    for kind, rope in ((ROPE, cfg.rope), (LOCAL_ROPE, cfg.local_rope)):
        if rope is not None and rope.kind != "none":
            inv_freq, scale = frequencies(rope, cfg.rope_dim, max_context)
            pages = [cos_sin(inv_freq, scale, torch.arange(i, i + PAGE)) for i in range(0, max_context, PAGE)]
            cos, sin = (torch.cat(parts).to(device) for parts in zip(*pages, strict=True))
            tables[kind] = cos, sin
    return tables
