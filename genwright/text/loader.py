"""Loader: load a model, or a rank's part of it, from a checkpoint, block by block."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from math import prod
from operator import itemgetter
from typing import Any

import torch

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.kernels.cpu.huge_pages import Arena
from genwright.kernels.cpu.tile_packing import tiles_of_integers
from genwright.placement.weights import templates
from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK
from genwright.quant.mixed import Mixed
from genwright.quant.packed import Packed, Weight, tensors_of
from genwright.quant.table import as_table, matrix_of
from genwright.quant.tiles import ROWS, Tiles, collect, join, tileable
from genwright.text.architectures.protocol import Architecture
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part, Source, Sources, WeightMap
from genwright.text.cache.layout import CacheSpec
from genwright.text.checkpoints.check_tensors import check_tensors
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.random import RandomWeights
from genwright.text.config import LOCAL_ROPE, ROPE, ModelConfig
from genwright.text.ops.protocol import Weights
from genwright.text.ops.rope import cos_sin, frequencies
from genwright.text.ops.step import RopeTables

EXPERTS = "experts."  # the names of weights that are stacks of matrices begin with it
LOOKED_UP = ("embed", "positions")  # tables, of which a step reads some rows
BEFORE_BLOCKS = (*LOOKED_UP, "project_in")  # weights of the first pipeline stage; the other outer ones are of the last
PIECE = {"cpu": 1 << 19, "cuda": 1 << 24}  # elements to quantize at a time; temporaries take ten times as much
Place = Callable[[Weights], Weights]
Watch = Callable[["Model"], None]


@dataclass(frozen=True)
class Model:
    """A loaded model: its architecture and its weights."""

    cfg: ModelConfig
    architecture: Architecture
    outer: dict[str, Any]  # tensors or packed matrices
    blocks: Sequence[Weights]
    dtype: torch.dtype
    device: torch.device
    max_context: int  # a multiple of the page size
    rope_tables: dict[str, RopeTables]
    columns: int  # of this rank's logits: the vocabulary or a part of it
    cache_spec: CacheSpec  # of a cache in the model's dtype

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that decoding one token reads."""
        return int(self.bytes_read(1))

    def bytes_read(self, tokens: int) -> float:
        """Bytes of weights that a step reads: without embeddings, and of experts those that even choices would visit.

        A token chooses an expert with probability top_k / experts, independently of the others.
        """
        outer = {name: weight for name, weight in self.outer.items() if name not in LOOKED_UP}
        moe = self.cfg.moe
        visited = 1.0 if moe is None else 1 - (1 - moe.top_k / moe.experts) ** tokens
        weights = [item for block in (outer, *self.blocks) for item in templates(block).items()]
        return sum(
            (visited if name.startswith("experts.") else 1.0) * tensor.nbytes
            for name, weight in weights
            for tensor in tensors_of(weight)
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and of 64 values of every tensor."""
        digest = hashlib.sha256(repr((self.cfg, self.dtype)).encode())
        for block in (self.outer, *self.blocks):
            for tensor in chain.from_iterable(tensors_of(block[name]) for name in sorted(block)):
                values = tensor.flatten()[:: max(tensor.numel() // 64, 1)].contiguous()
                digest.update(values.view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()


@dataclass
class Loader:
    """Loads weights in `dtype` to `device`.

    Matrices are quantized to `quant`; without it, stored formats are kept if `packed`, else dequantized. With `tiled`,
    packed ones are laid out for the CPU kernels. Ranks split every expert, or with `expert_parallel` each rank has some
    experts whole. A pipeline stage has some `layers`; the first has the embedding too, and the last one the head.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    packed: bool = True
    tiled: bool = False
    quant: Format | None = None
    progress: Callable[[int, int], None] = lambda done, total: None  # both are numbers of tensors
    rank: int = 0
    ranks: int = 1
    expert_parallel: bool = False
    layers: range | None = None
    _arena: Arena = field(default_factory=Arena)
    _done: int = 0
    _total: int = 0

    @cached_property
    def weights(self) -> WeightMap:
        return architecture(self.checkpoint.config).weight_map(self.checkpoint.config)

    def model(self, max_context: int, place: Place = lambda block: block, watch: Watch = lambda model: None) -> Model:
        """The model without its multi-token-prediction layer; `place` gets each block, then `watch` the model."""
        check_tensors(self.checkpoint)
        cfg = self.checkpoint.config
        blocks = [self.outer_sources(), *(self.weights.block(layer) for layer in self.own_layers)]
        self._done, self._total = 0, sum(len(self._own(sources)) for block in blocks for sources in block.values())
        outer, loaded = self.load(blocks[0]), list[Weights]()
        if "embed" in outer:
            outer.setdefault("head", matrix_of(outer["embed"]))
        context, tables = -(-max_context // PAGE) * PAGE, rope_tables(cfg, max_context, self.device)
        head = self.weights.outer.get("head", self.weights.outer["embed"])
        forms = self.forms("head", head)
        own = self._part(head[0], None if forms is None else forms[0]).length, self.cache_spec()
        model = Model(cfg, architecture(cfg), outer, loaded, self.dtype, self.device, context, tables, *own)
        for block in blocks[1:]:
            loaded.append(place(self.load(block)))
            watch(model)
        return model

    def cache_spec(self, bits: int | None = None) -> CacheSpec:
        """What this rank stores of each token."""
        layers = architecture(self.checkpoint.config).cache_layers(self.checkpoint.config)
        return CacheSpec([layer.part(self.ranks) for layer in layers], self.dtype, bits, self.layers)

    @property
    def own_layers(self) -> range:
        return range(self.checkpoint.config.layers) if self.layers is None else self.layers

    def block(self, layer: int) -> dict[str, Any]:
        """A layer's weights; the layer after the last is the multi-token-prediction layer."""
        return self.load(self.weights.block(layer))

    def block_bytes(self, layer: int) -> int:
        """The size of a loaded block."""
        return self.bytes(self.weights.block(layer))

    def total_bytes(self, draft: bool = False) -> int:
        """The size of all loaded weights, with or without the multi-token-prediction layer."""
        check_tensors(self.checkpoint, draft)
        layers = [*self.own_layers, *[self.checkpoint.config.layers] * draft]
        return self.bytes(self.outer_sources()) + sum(map(self.block_bytes, layers))

    def outer_sources(self) -> dict[str, Sources]:
        """The weights outside the blocks; a tied head is one of them if it is packed and the embedding is not."""
        outer, embed = dict(self.weights.outer), self.weights.outer["embed"]
        first, last = self.own_layers.start == 0, self.own_layers.stop == self.checkpoint.config.layers
        packed = self.forms("head", embed) is not None and self.forms("embed", embed) is None
        if "head" not in outer and (packed or not first):
            outer["head"] = embed
        return {name: sources for name, sources in outer.items() if (first if name in BEFORE_BLOCKS else last)}

    def load(self, block: Mapping[str, Sources]) -> dict[str, Any]:
        return {name: self._weight(name, self._own(sources)) for name, sources in block.items()}

    def bytes(self, block: Mapping[str, Sources]) -> int:
        """The size of loaded weights."""
        total = 0
        for name, sources in block.items():
            own, itemsize = self._own(sources), self._dtype(name).itemsize
            forms: Sequence[Format | None] = self.forms(name, own) or [None] * len(own)
            for source, form in zip(own, forms, strict=True):
                shape = self._part(source, form).shape(source.shape)
                total += prod(shape) * itemsize if form is None else form.bytes(shape, self.tiled)
        return total

    def forms(self, name: str, sources: Sources) -> Sequence[Format] | None:
        """The formats that a weight's matrices are packed in; None if they are not packed."""
        unpacked = {*LOOKED_UP, *self.weights.unpacked, *self.weights.exact}
        unpacked -= {"embed"} if self.quant is None else set()
        if name in unpacked or any(len(source.shape) != 2 for source in sources):
            return None
        stored = [self.checkpoint.format(source.name) for source in sources]
        if self.quant is not None:
            return [self.quant.of_head(stored[0]) if name == "head" else self.quant] * len(sources)
        formats = [form for form in stored if form is not None]
        if not self.packed or len(formats) < len(stored) or (name == "embed" and formats[0].kind == "fp8"):
            return None
        if name.startswith(EXPERTS):  # the matrices of a stack must be alike
            whole = not self.tiled or formats[0].portable or self._whole_tiles(formats[0], sources)
            return formats if whole and len(set(formats)) == 1 else None
        return formats

    def quantized(self, source: Source, form: Format, tiled: bool = False) -> Iterator[Packed]:
        """A matrix in a format, some rows at a time: as stored if that is its format, else quantized on the device."""
        stored, part = self.checkpoint.format(source.name), self._part(source, form)
        if stored == form:
            tiles = self.checkpoint.tiles({source.name: part}) if tiled else None
            yield tiles or self.checkpoint.packed_on(self.device, source.name, part)
            return
        columns = part if part.axis == 1 and form.by_rows else None
        matrix = self._tensor(source, None if stored is None else torch.float32, source.whole if columns else part)
        size = PIECE.get(self.device.type, PIECE["cuda"]) // matrix.shape[1]
        for rows in matrix.split(max(1, size // BLOCK) * BLOCK):
            packed = form.quantize(rows.to(self.device))
            yield packed if columns is None else packed.narrow(*columns).map(torch.Tensor.clone)

    def _own(self, sources: Sources) -> Sources:
        """The sources without the experts of other ranks."""
        moe = self.checkpoint.config.moe
        if not self.expert_parallel or moe is None:
            return sources
        if moe.experts % self.ranks:
            raise UserError(f"{moe.experts} experts cannot be divided evenly among {self.ranks} ranks.")
        return [source for source in sources if source.owner(moe.experts, self.ranks) in (None, self.rank)]

    def _part(self, source: Source, form: Format | None) -> Part:
        """This rank's part of a tensor."""
        if self.expert_parallel and source.expert is not None:
            return source.whole
        return source.part(self.rank, self.ranks, form.unit(source.axis or 0) if form else 1)

    def _weight(self, name: str, sources: Sources) -> Weight:
        forms = self.forms(name, sources)
        if forms is None:
            fused = self._fuse(sources, self._dtype(name))
            return fused.add_(1) if name in self.weights.one_added else fused
        matrices: list[Packed] = []
        for form, some in groupby(zip(forms, sources, strict=True), key=itemgetter(0)):
            matrices += self._joined(form, [source for _, source in some], name.startswith(EXPERTS))
        if name == "embed":
            return as_table(matrices[0], self.dtype)
        return matrices[0] if len(matrices) == 1 else Mixed(tuple(matrices))

    def _joined(self, form: Format, sources: Sources, stack: bool) -> list[Packed]:
        """Matrices of one format as a single one if possible, in tiles if those of each matrix of a stack are whole."""
        if self.tiled and not stack and all(self.checkpoint.format(source.name) == form for source in sources):
            parts = {source.name: self._part(source, form) for source in sources}
            if (tiles := self.checkpoint.tiles(parts, self._arena.empty)) is not None:
                self._report(len(sources))
                return [tiles]
        whole = self.tiled and self._whole_tiles(form, sources if stack else sources[:-1])
        pieces = self._pieces(form, sources, whole)
        first = next(pieces)
        if whole and isinstance(first, Tiles):
            rows = sum(self._rows(source, form) for source in sources)
            others = (piece for piece in pieces if isinstance(piece, Tiles))
            return [collect(rows, chain([first], others), self._arena.empty)]
        joined = join([first, *pieces])
        if self.tiled and not stack:
            joined = [tiles_of_integers(matrix) if tileable(matrix) else matrix for matrix in joined]
        return [matrix.map(self._arena.copy) for matrix in joined] if self.device.type == "cpu" else joined

    def _pieces(self, form: Format, sources: Sources, tiled: bool) -> Iterator[Packed]:
        for source in sources:
            for piece in self.quantized(source, form, tiled):
                yield tiles_of_integers(piece) if tiled and tileable(piece) else piece
            self._report()

    def _rows(self, source: Source, form: Format) -> int:
        return self._part(source, form).shape(source.shape)[0]

    def _whole_tiles(self, form: Format, sources: Sources) -> bool:
        return not any(self._rows(source, form) % ROWS for source in sources)

    def _fuse(self, sources: Sources, dtype: torch.dtype) -> torch.Tensor:
        shapes = [self._part(source, None).shape(source.shape) for source in sources]
        rows = [shape[0] for shape in shapes]
        shape, on_cpu = (sum(rows), *shapes[0][1:]), self.device.type == "cpu"
        fused = self._arena.empty(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=self.device)
        for source, target in zip(sources, fused.split(rows), strict=True):
            # A plain tensor is converted by the copy, because a converted one would need memory of its own.
            plain = self.checkpoint.format(source.name) is None and not isinstance(self.checkpoint, RandomWeights)
            target.copy_(self._tensor(source, None if plain else dtype, self._part(source, None)))
            self._report()
        return fused

    def _tensor(self, source: Source, dtype: torch.dtype | None, part: Part) -> torch.Tensor:
        """A part of a tensor; random ones are computed on the device, because a GPU is far faster."""
        if isinstance(self.checkpoint, RandomWeights):
            return self.checkpoint.tensor(source.name, dtype, part, self.device)
        return self.checkpoint.tensor(source.name, dtype, part)

    def _report(self, tensors: int = 1) -> None:
        self._done += tensors
        self.progress(self._done, self._total)

    def _dtype(self, name: str) -> torch.dtype:
        return torch.float32 if name in self.weights.exact else self.dtype


def rope_tables(cfg: ModelConfig, max_context: int, device: torch.device) -> dict[str, RopeTables]:
    """cos and sin for whole pages of positions, for each kind of RoPE.

    They are computed page by page, so that their bits do not depend on the number of pages.
    """
    tables: dict[str, RopeTables] = {}
    for kind, rope in ((ROPE, cfg.rope), (LOCAL_ROPE, cfg.local_rope)):
        if rope is not None and rope.kind != "none":
            inv_freq, scale = frequencies(rope, cfg.rope_dim, max_context)
            pages = [cos_sin(inv_freq, scale, torch.arange(i, i + PAGE)) for i in range(0, max_context, PAGE)]
            cos, sin = (torch.cat(parts).to(device) for parts in zip(*pages, strict=True))
            tables[kind] = cos, sin
    return tables
