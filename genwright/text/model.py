"""Text models: one file per architecture, written as embed, blocks and head, with its weight map as data."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.quant.formats import Format
from genwright.quant.fp8 import VALUES, scales_shape
from genwright.quant.packed import tensors_of
from genwright.text.architectures.protocol import Architecture
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Shape, Sources
from genwright.text.checkpoints import Checkpoint
from genwright.text.config import LOCAL_ROPE, ROPE, ModelConfig
from genwright.text.loader import LOOKED_UP, Loader
from genwright.text.ops.rope import cos_sin, frequencies
from genwright.text.ops.step import RopeTables
from genwright.text.unused_tensors import check_unused


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
            for name in sorted(part.keys() - {"cos", "sin"}):
                for tensor in tensors_of(part[name]):
                    values = tensor.flatten()[:: max(tensor.numel() // 64, 1)].contiguous()
                    digest.update(values.view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    max_context: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    packed: bool = True,
    quant: Format | None = None,
) -> Model:
    """Stream a checkpoint's weights into a model, fusing on the way; `progress` is told tensors done and in all.

    `quant` packs linear weights and experts; without it, `packed` keeps those that are stored packed as they are.
    """
    cfg = checkpoint.config
    home = architecture(cfg)
    check_tensors(checkpoint)
    load = Loader(checkpoint, home.weight_map(cfg), dtype, device, packed, quant, progress)
    parts = _parts(load)
    load.total = sum(len(sources) for part in parts for sources in part.values())
    outer, *blocks = (load.part(part) for part in parts)
    outer.setdefault("head", outer["embed"])
    context = -(-max_context // PAGE) * PAGE
    return Model(cfg, home, outer, blocks, dtype, device, context, rope_tables(cfg, max_context, device))


def load_draft(
    checkpoint: Checkpoint, model: Model, packed: bool = True, quant: Format | None = None
) -> dict[str, Any] | None:
    """The weights of the multi-token-prediction layer, which stands after the last; None where there is none."""
    if not has_draft(checkpoint):
        return None
    check_tensors(checkpoint, draft=True)
    weights = model.architecture.weight_map(model.cfg)
    load = Loader(checkpoint, weights, model.dtype, model.device, packed, quant)
    return load.part(weights.block(model.cfg.layers))


def loaded_bytes(
    checkpoint: Checkpoint, dtype: torch.dtype, packed: bool = True, quant: Format | None = None, draft: bool = False
) -> int:
    """What a checkpoint's weights take once they are loaded, with the multi-token-prediction layer or without."""
    cfg = checkpoint.config
    check_tensors(checkpoint, draft)
    load = Loader(checkpoint, architecture(cfg).weight_map(cfg), dtype, torch.device("cpu"), packed, quant)
    return sum(load.bytes(part) for part in _parts(load, draft))


def _parts(load: Loader, draft: bool = False) -> list[dict[str, Sources]]:
    layers = range(load.checkpoint.config.layers + draft)
    return [load.outer(), *(load.weights.block(layer) for layer in layers)]


def has_draft(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has the multi-token-prediction layer that its configuration may promise."""
    cfg = checkpoint.config
    weights = architecture(cfg).weight_map(cfg)
    return bool(weights.draft) and weights.block(cfg.layers)["join"][0][0] in checkpoint.names()


def check_tensors(checkpoint: Checkpoint, draft: bool = False) -> None:
    """Every tensor that the configuration calls for, and no other of its modules, is there and has its shape."""
    cfg, names, used = checkpoint.config, set(checkpoint.names()), set()

    def check(name: str, wanted: Shape) -> None:
        where = checkpoint.where(name)
        if name not in names:
            raise UserError(f"{where} has no tensor {name!r}, which its configuration calls for.")
        if (found := checkpoint.shape(name)) != wanted:
            raise UserError(f"{where} has {name!r} of shape {list(found)}; its configuration calls for {list(wanted)}.")
        used.add(name)

    for name, wanted in architecture(cfg).weight_map(cfg).tensors(draft):
        check(name, wanted)
        if checkpoint.dtype(name) == VALUES:
            scales = f"{name}_scale_inv"
            check(scales, scales_shape(wanted))
            if len(wanted) != 2 or checkpoint.dtype(scales) == VALUES:
                what = "which matrices alone are, with scales of more bits"
                raise UserError(f"{checkpoint.where(name)} has {name!r} in FP8, {what}.")
    check_unused(checkpoint, used)


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
