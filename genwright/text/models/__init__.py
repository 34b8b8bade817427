"""Text models: one file per architecture, written as embed, blocks and head, with its weight map as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from genwright.errors import UserError
from genwright.quant.fp8 import BLOCK, VALUES, Fp8Blocks, scales_shape
from genwright.quant.packed import Weight, tensors_of
from genwright.text.checkpoints import Checkpoint
from genwright.text.config import ModelConfig
from genwright.text.engine.kv import PAGE
from genwright.text.layers.rope import cos_sin, frequencies
from genwright.text.models.weight_map import Shape, Sources, WeightMap


@dataclass(frozen=True)
class Model:
    """A loaded model: its architecture's functions, and the weights that they read."""

    cfg: ModelConfig
    architecture: ModuleType  # embed, block, head, cache_spec, weight_map
    outer: dict[str, Any]  # tensors; of matrices also packed weights
    blocks: list[dict[str, Any]]
    dtype: torch.dtype
    device: torch.device
    max_context: int  # in whole pages

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, a tied head counted once."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for part in (self.outer, *self.blocks)
            for weight in part.values()
            for tensor in tensors_of(weight)
        }
        return sum(storages.values())

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decoding step of one token reads: no embedding but a row, of experts its own."""
        skipped = ("embed", "positions", "cos", "sin")
        outer = {name: weight for name, weight in self.outer.items() if name not in skipped}
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


def architecture(cfg: ModelConfig) -> ModuleType:
    return import_module(f"genwright.text.models.{cfg.architecture}")


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    max_context: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    packed: bool = True,
) -> Model:
    """Stream a checkpoint's weights into a model, fusing on the way; `progress` is told tensors done and in all.

    `packed` keeps weights that are stored in fewer bits as they are; without it they become `dtype`.
    """
    cfg = checkpoint.config
    home = architecture(cfg)
    weights = home.weight_map(cfg)
    check_tensors(checkpoint)
    parts = [weights.outer, *(weights.block(layer) for layer in range(cfg.layers))]
    load = Loader(checkpoint, weights, dtype, device, packed, progress, sum(map(_count, parts)))
    outer, *blocks = (load.part(part) for part in parts)
    outer.setdefault("head", outer["embed"])
    if cfg.rope.kind != "none":
        outer["cos"], outer["sin"] = _rope_tables(cfg, max_context, device)
    return Model(cfg, home, outer, blocks, dtype, device, max_context)


def load_draft(checkpoint: Checkpoint, model: Model, packed: bool = True) -> dict[str, Any] | None:
    """The weights of the multi-token-prediction layer, which stands after the last; None where there is none."""
    if not has_draft(checkpoint):
        return None
    check_tensors(checkpoint, draft=True)
    weights = model.architecture.weight_map(model.cfg)
    part = weights.block(model.cfg.layers)
    load = Loader(checkpoint, weights, model.dtype, model.device, packed, lambda done, total: None, _count(part))
    return load.part(part)


def has_draft(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has the multi-token-prediction layer that its configuration may promise."""
    cfg = checkpoint.config
    weights = architecture(cfg).weight_map(cfg)
    return bool(weights.draft) and weights.block(cfg.layers)["join"][0][0] in checkpoint.names()


@dataclass
class Loader:
    """Copies tensors into the weights that they make up."""

    checkpoint: Checkpoint
    weights: WeightMap
    dtype: torch.dtype
    device: torch.device
    packed: bool
    progress: Callable[[int, int], None]
    total: int
    done: int = 0

    def part(self, part: Mapping[str, Sources]) -> dict[str, Any]:
        return {name: self.fuse(name, sources) for name, sources in part.items()}

    def fuse(self, name: str, sources: Sources) -> Weight:
        if self.packed and name not in self._wide and self._in_blocks(sources):
            values = self._fuse(sources, VALUES)
            scales = [(f"{source}_scale_inv", scales_shape(shape)) for source, shape in sources]
            return Fp8Blocks(values, self._fuse(scales, torch.float32, count=False))
        return self._fuse(sources, torch.float32 if name in self.weights.exact else self.dtype)

    @property
    def _wide(self) -> set[str]:
        """Weights that are never kept packed: those of no layer are looked up, not multiplied with."""
        return {*self.weights.unpacked, *self.weights.exact, *self.weights.outer}

    def _fuse(self, sources: Sources, dtype: torch.dtype, count: bool = True) -> torch.Tensor:
        rows = sum(shape[0] for _, shape in sources)
        target = torch.empty((rows, *sources[0][1][1:]), dtype=dtype, device=self.device)
        first = 0
        for name, shape in sources:
            target[first : first + shape[0]].copy_(self.checkpoint.tensor(name, None if dtype == VALUES else dtype))
            first += shape[0]
            self.done += count
            self.progress(self.done, self.total)
        return target

    def _in_blocks(self, sources: Sources) -> bool:
        """Whether all are stored in FP8, and only the last may end within a block."""
        stored = all(self.checkpoint.dtype(name) == VALUES for name, _ in sources)
        return stored and all(shape[0] % BLOCK == 0 for _, shape in sources[:-1])


def _count(part: Mapping[str, Sources]) -> int:
    return sum(map(len, part.values()))


def check_tensors(checkpoint: Checkpoint, draft: bool = False) -> None:
    """Every tensor that the configuration calls for is there and has its shape; nothing is allocated to find out."""
    cfg, names = checkpoint.config, set(checkpoint.names())

    def check(name: str, wanted: Shape) -> None:
        where = checkpoint.where(name)
        if name not in names:
            raise UserError(f"{where} has no tensor {name!r}, which its configuration calls for.")
        if (found := checkpoint.shape(name)) != wanted:
            raise UserError(f"{where} has {name!r} of shape {list(found)}; its configuration calls for {list(wanted)}.")

    for name, wanted in architecture(cfg).weight_map(cfg).tensors(draft):
        check(name, wanted)
        if checkpoint.dtype(name) == VALUES:
            scales = f"{name}_scale_inv"
            check(scales, scales_shape(wanted))
            if len(wanted) != 2 or checkpoint.dtype(scales) == VALUES:
                what = "which matrices alone are, with scales of more bits"
                raise UserError(f"{checkpoint.where(name)} has {name!r} in FP8, {what}.")


def _rope_tables(cfg: ModelConfig, max_context: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position, computed a page at a time: the same bits whatever the context's length."""
    inv_freq, scale = frequencies(cfg.rope, cfg.rope_dim)
    pages = [cos_sin(inv_freq, scale, torch.arange(i, i + PAGE)) for i in range(0, max_context, PAGE)]
    cos, sin = (torch.cat(tables).to(device) for tables in zip(*pages, strict=True))
    return cos, sin
