"""Check that a checkpoint has exactly the tensors that its configuration needs."""

import re
import warnings
from collections.abc import Collection

import torch

from genwright.errors import GenwrightWarning, UserError
from genwright.quant.fp8 import VALUES, scales_shape
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Shape
from genwright.text.checkpoints.protocol import SCALES, Checkpoint

# Buffers that are computed from the configuration or while a model runs; some checkpoints store them too.
_BUFFERS = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|rope\.freqs|freqs_c(is|os)|freqs_sin|causal_mask|masked_bias|kv_cache\.[kv]_cache"
    r"|decoder\.version)"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.([0-9]{1,6})\.")


def has_draft(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has a multi-token-prediction layer; its configuration may name one that is missing."""
    cfg = checkpoint.config
    weights = architecture(cfg).weight_map(cfg)
    return bool(weights.draft) and weights.block(cfg.layers)["join"][0].name in checkpoint.names()


def check_tensors(checkpoint: Checkpoint, draft: bool = False) -> None:
    """Raise if a tensor is missing, has another shape than the configuration says, or would be ignored."""
    cfg, names, used = checkpoint.config, set(checkpoint.names()), set()

    def check(name: str, wanted: Shape) -> None:
        where = checkpoint.where(name)
        if name not in names:
            raise UserError(f"{where} has no tensor {name!r}, which its configuration needs.")
        if (found := checkpoint.shape(name)) != wanted:
            raise UserError(f"{where} has {name!r} of shape {list(found)}; its configuration needs {list(wanted)}.")
        used.add(name)

    for name, wanted, *_ in architecture(cfg).weight_map(cfg).tensors(draft):
        check(name, wanted)
        if checkpoint.dtype(name) == VALUES:
            scales = name + SCALES
            check(scales, scales_shape(wanted))
            if len(wanted) != 2 or checkpoint.dtype(scales) == VALUES:
                what = "FP8 weights must be matrices, and their scales must not be in FP8"
                raise UserError(f"{checkpoint.where(name)} has {name!r} in FP8; {what}.")
    _check_unused(checkpoint, used)


def _check_unused(checkpoint: Checkpoint, used: Collection[str]) -> None:
    """Raise for unused tensors of the model's own modules, such as biases; warn of other unused tensors."""
    cfg = checkpoint.config
    modules = {name.rpartition(".")[0] for name in used}
    others = []
    for name in checkpoint.names():
        found = _LAYER.search(name)
        layer = int(found[1]) if found else None
        draft = layer is not None and cfg.layers <= layer < cfg.layers + cfg.draft_layers
        if name in used or draft or _BUFFERS.fullmatch(name):
            continue
        if name == "lm_head.weight" and cfg.tied:
            _check_tied(checkpoint, name, next(each for each in used if each.endswith("embed_tokens.weight")))
        elif (layer is not None and layer < cfg.layers) or name.rpartition(".")[0] in modules:
            raise UserError(
                f"{checkpoint.where(name)} has the tensor {name!r:.120}, which its configuration does not use; the "
                "configuration may belong to another model."
            )
        else:
            others.append(name)
    if others:
        count = "a tensor" if len(others) == 1 else f"{len(others)} tensors"
        what = f"{count} that the model does not use: {others[0]!r:.120}{'' if len(others) == 1 else ' and others'}."
        warnings.warn(f"{checkpoint.path} has {what}", GenwrightWarning, stacklevel=2)


def _check_tied(checkpoint: Checkpoint, head: str, embed: str) -> None:
    """A tied head is often stored as a copy of the embedding; compare some rows to make sure that it is one."""
    if checkpoint.format(head) is not None or checkpoint.format(embed) is not None:
        return
    one, other = (checkpoint.tensor(name) for name in (head, embed))
    rows = slice(None, None, max(len(other) // 64, 1))
    if one.shape != other.shape or not torch.equal(one[rows].float(), other[rows].float()):
        raise UserError(
            f"{checkpoint.where(head)} has the tensor {head!r}, which differs from {embed!r}, but its configuration "
            "has tie_word_embeddings; set that to false to use the tensor."
        )
