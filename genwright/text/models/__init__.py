"""Text models: one file per architecture, written as embed, blocks and head, with its weight map as data."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import torch

from genwright.errors import UserError
from genwright.text.checkpoints import Checkpoint
from genwright.text.config import ModelConfig
from genwright.text.engine.kv import PAGE
from genwright.text.layers.rope import cos_sin, frequencies
from genwright.text.models.weight_map import Sources


@dataclass(frozen=True)
class Model:
    """A loaded model: its architecture's functions, and the weights that they read."""

    cfg: ModelConfig
    architecture: ModuleType  # embed, block, head, cache_spec, weight_map
    outer: dict[str, torch.Tensor]
    blocks: list[dict[str, torch.Tensor]]
    dtype: torch.dtype
    device: torch.device

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, a tied head counted once."""
        storages = {
            weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes()
            for part in (self.outer, *self.blocks)
            for weight in part.values()
        }
        return sum(storages.values())

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decoding step reads: all but the input embedding, of which it reads a row."""
        parts = ({"norm": self.outer["norm"], "head": self.outer["head"]}, *self.blocks)
        return sum(weight.nbytes for part in parts for weight in part.values())


def architecture(cfg: ModelConfig) -> ModuleType:
    return import_module(f"genwright.text.models.{cfg.architecture}")


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    max_context: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Model:
    """Stream a checkpoint's weights into a model, fusing on the way; `progress` is told tensors done and in all."""
    cfg = checkpoint.config
    home = architecture(cfg)
    weights = home.weight_map(cfg)
    parts = [weights.outer, *(weights.block(layer) for layer in range(cfg.layers))]
    check_tensors(checkpoint)
    total, done = sum(len(sources) for part in parts for sources in part.values()), 0

    def fuse(sources: Sources) -> torch.Tensor:
        nonlocal done
        rows = sum(shape[0] for _, shape in sources)
        target = torch.empty((rows, *sources[0][1][1:]), dtype=dtype, device=device)
        first = 0
        for name, shape in sources:
            target[first : first + shape[0]].copy_(checkpoint.tensor(name, dtype))
            first += shape[0]
            done += 1
            progress(done, total)
        return target

    outer, *blocks = ({name: fuse(sources) for name, sources in part.items()} for part in parts)
    outer.setdefault("head", outer["embed"])
    outer["cos"], outer["sin"] = _rope_tables(cfg, max_context, device)
    return Model(cfg, home, outer, blocks, dtype, device)


def check_tensors(checkpoint: Checkpoint) -> None:
    """Every tensor that the configuration calls for is there and has its shape; nothing is allocated to find out."""
    cfg, names = checkpoint.config, set(checkpoint.names())
    for name, wanted in architecture(cfg).weight_map(cfg).tensors(cfg.layers):
        if name not in names:
            raise UserError(f"{checkpoint.path} has no tensor {name!r}, which its configuration calls for.")
        if (found := checkpoint.shape(name)) != wanted:
            raise UserError(
                f"{checkpoint.path} has {name!r} of shape {list(found)}; its configuration calls for {list(wanted)}."
            )


def _rope_tables(cfg: ModelConfig, max_context: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position, computed a page at a time: the same bits whatever the context's length."""
    inv_freq, scale = frequencies(cfg.rope, cfg.head_dim)
    pages = [cos_sin(inv_freq, scale, torch.arange(i, i + PAGE)) for i in range(0, max_context, PAGE)]
    cos, sin = (torch.cat(tables).to(device) for tables in zip(*pages, strict=True))
    return cos, sin
