"""gpt-fast's model.pth: Meta's names, fused q, k and v, neighbouring rotary channels, no configuration."""

import re
from collections.abc import Iterator, Sequence
from math import lcm
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.quant.formats import Format
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed
from genwright.quant.tinygemm import columns, repack
from genwright.text.architectures.class_defaults import read_config_json
from genwright.text.architectures.registry import architecture, find_shape, read_config
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.pickled import is_pickled, load_pickled
from genwright.text.checkpoints.protocol import Checkpoint, cast, narrow, parse_dtype
from genwright.text.checkpoints.rope_order import halves_from_neighbours
from genwright.text.config import ModelConfig

OUTER = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm.weight": "attention_norm.weight",
    "self_attn.q_proj.weight": "attention.wq.weight",
    "self_attn.k_proj.weight": "attention.wk.weight",
    "self_attn.v_proj.weight": "attention.wv.weight",
    "self_attn.o_proj.weight": "attention.wo.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
}
ROTATED = ("q_proj.weight", "k_proj.weight")
# Mixtral: each layer has a router, and one tensor [experts, rows, columns] for each weight of the experts.
ROUTER, EXPERTS = "block_sparse_moe.gate.weight", "block_sparse_moe.cond_ffn.w"


class GptFast(Checkpoint):
    """Also its int8 and int4 files, its Mixtral, and the stories models, which have separate q, k and v."""

    def __init__(self, path: Path, arch: str | None = None):
        self.path, self.folder = str(path), path.parent
        self._tensors = _tensors(load_pickled(path))
        numbers = [int(found[1]) for name in self._tensors if (found := re.match(r"layers\.([0-9]{1,4})\.", name))]
        self._layers = 1 + max(numbers, default=-1)
        beside = path.parent / "config.json"
        given = arch is None and beside.exists()
        self.hf_config: dict[str, Any] = read_config_json(beside) if given else find_shape(path, arch, self._fits)
        self.config = read_config(self.hf_config, self.path)
        self._names = dict(self._hugging_face_names())
        self._shapes = {s.name: s.shape for s in architecture(self.config).weight_map(self.config).tensors()}

    @staticmethod
    def recognises(path: Path) -> bool:
        return is_pickled(path) and "tok_embeddings.weight" in _tensors(load_pickled(path))

    def names(self) -> Sequence[str]:
        """Unknown tensors keep their names, so that `check_tensors` reports them."""
        stored = {theirs if theirs in self._tensors else _fused(theirs) for theirs, _ in self._names.values()}
        read = {*stored, *(scales for theirs in stored for scales in _scales(theirs))}
        return [*self._names, *(name for name in self._tensors if name not in read)]

    def shape(self, name: str) -> tuple[int, ...]:
        stored, _, rows = self._stored(name)
        form = self.format(name)
        if form is None or form.kind == "int8":
            return (len(range(stored.shape[0])[rows]), *stored.shape[1:]) if stored.dim() else ()
        return (len(range(stored.shape[0] * 8)[rows]), self._inputs(name, columns(stored)))

    def dtype(self, name: str) -> torch.dtype:
        return self._stored(name)[0].dtype if self.format(name) is None else parse_dtype(self.config.dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        if self.format(name) is not None:
            return self.dequantized(name, dtype or torch.float32, part)
        stored, _, rows = self._stored(name)
        plain = cast(stored, None, f"{self.path} stores {name!r}")
        return self._ordered(name, plain[rows] if plain.dim() else plain, part).to(dtype or plain.dtype)

    def format(self, name: str) -> Format | None:
        stored, scales, _ = self._stored(name)
        if scales is None:
            return None
        wrong = UserError(f"{self.path} has {name!r} in a quantized layout that gpt-fast does not write.")
        if stored.dtype == torch.int8 and stored.dim() == 2:
            if scales.shape != stored.shape[:1] or not scales.is_floating_point():
                raise wrong
            return Format("int8")
        if stored.dtype != torch.int32 or stored.dim() != 4 or stored.shape[2] != 32 or scales.dim() != 3:
            raise wrong
        groups, rows, two = scales.shape
        group, rest = divmod(columns(stored), max(groups, 1))
        if not groups or rest or group % 8 or rows != stored.shape[0] * 8 or two != 2 or not scales.is_floating_point():
            raise wrong
        return Format("int4", group, asymmetric=True)

    def packed(self, name: str, part: Part | None = None) -> Packed:
        stored, scales, rows = self._stored(name)
        assert scales is not None
        if stored.dtype == torch.int8:
            values = stored[rows]
            int8 = Int8(values, scales[rows].float()[:, None], values.shape[1])
            if part is not None and part.axis == 1:
                int8, part = int8.narrow(*part), None
            return int8.map(lambda tensor: self._ordered(name, tensor, part))
        first, last, _ = rows.indices(stored.shape[0] * 8)
        inputs = self._inputs(name, columns(stored))
        group, tile = columns(stored) // len(scales), columns(stored) // stored.shape[1]
        # Read only the tiles that overlap the part, in whole groups and heads.
        part = part or Part(0, 0, last - first)
        unit = lcm(8, self.config.head_dim if name.endswith(ROTATED) else 1) if part.axis == 0 else lcm(tile, group)
        aligned, inside = part.align(unit, (last - first, inputs)[part.axis])
        if part.axis == 0:
            first, last = first + aligned.start, first + aligned.start + aligned.length
        else:
            tiles = slice(aligned.start // tile, -(-(aligned.start + aligned.length) // tile))
            stored, scales, inputs = stored[:, tiles], scales[aligned.start // group :], aligned.length
        int4 = repack(stored[first // 8 : last // 8], scales[:, first:last], inputs, group)
        return int4.map(lambda tensor: self._ordered(name, tensor)).narrow(*inside)

    def _ordered(self, name: str, tensor: torch.Tensor, part: Part | None = None) -> torch.Tensor:
        if name.endswith(ROTATED):
            return halves_from_neighbours(tensor, self.config.head_dim, part)
        return narrow(tensor, part)

    def _inputs(self, name: str, stored: int) -> int:
        """The columns of a matrix whose tiles hold `stored` columns: gpt-fast may have padded them."""
        inputs = self._shapes[name][1] if name in self._shapes else stored
        return inputs if stored in (inputs, _padded(inputs)) else stored

    def _hugging_face_names(self) -> Iterator[tuple[str, tuple[str, int | None]]]:
        """Hugging Face's name, gpt-fast's, and the expert's index, for each tensor of the file.

        Parts of a fused `wqkv` have the names that they would have if they were separate.
        """
        for ours, theirs in OUTER.items():
            if theirs in self._tensors:
                yield ours, (theirs, None)
        for layer in range(self._layers):
            prefix = f"layers.{layer}."
            for ours, theirs in {**LAYER, ROUTER: ROUTER}.items():
                theirs = prefix + theirs
                fused = theirs.split(".")[3] in ("wq", "wk", "wv") and _fused(theirs) in self._tensors
                if theirs in self._tensors or fused:
                    yield f"model.{prefix}{ours}", (theirs, None)
            for number in (1, 2, 3):
                theirs = f"{prefix}{EXPERTS}{number}"
                stacked = self._tensors.get(theirs)
                for expert in range(stacked.shape[0] if stacked is not None and stacked.dim() == 3 else 0):
                    yield f"model.{prefix}block_sparse_moe.experts.{expert}.w{number}.weight", (theirs, expert)

    def _stored(self, name: str) -> tuple[torch.Tensor, torch.Tensor | None, slice]:
        """A tensor of the file, its scales if it is quantized, and the rows that have this name."""
        (theirs, expert), rows = self._names[name], slice(None)
        if theirs not in self._tensors:
            q, kv = self.config.q_dim, self.config.kv_dim
            rows = {"wq": slice(q), "wk": slice(q, q + kv), "wv": slice(q + kv, None)}[theirs.split(".")[3]]
            theirs = _fused(theirs)
        stored = self._tensors[theirs]
        scales = next((self._tensors[key] for key in _scales(theirs) if key in self._tensors), None)
        if expert is None:
            return stored, scales, rows
        return stored[expert], None if scales is None else torch.atleast_2d(scales)[expert : expert + 1].flatten(), rows

    def _fits(self, cfg: ModelConfig) -> bool:
        if cfg.architecture != "llama" or cfg.qkv_bias or cfg.qk_norm or cfg.layers != self._layers:
            return False
        expected: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (cfg.vocab_size, cfg.dim)}
        if cfg.moe is not None:
            expected[f"layers.0.{EXPERTS}1"] = (cfg.moe.experts, cfg.moe.ffn_dim, cfg.dim)
        else:
            expected["layers.0.feed_forward.w1.weight"] = (cfg.ffn_dim, cfg.dim)
        if "layers.0.attention.wqkv.weight" in self._tensors:
            expected["layers.0.attention.wqkv.weight"] = (cfg.q_dim + 2 * cfg.kv_dim, cfg.dim)
        else:
            expected["layers.0.attention.wk.weight"] = (cfg.kv_dim, cfg.dim)
        return all(n in self._tensors and _has_shape(self._tensors[n], s) for n, s in expected.items())


def _tensors(loaded: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a possibly nested file; torch.compile's `_orig_mod.` prefix is dropped."""
    inner = loaded.get("model")
    items = (inner if isinstance(inner, dict) else loaded).items()
    return {str(k).removeprefix("_orig_mod."): v for k, v in items if isinstance(v, torch.Tensor)}


def _has_shape(stored: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a matrix, plain or in int4 tiles, has this shape."""
    if stored.dim() != 4:
        return tuple(stored.shape) == shape
    return stored.shape[0] * 8 == shape[0] and columns(stored) in (shape[1], _padded(shape[1]))


def _scales(theirs: str) -> tuple[str, ...]:
    """The possible names of a tensor's scales."""
    if theirs.endswith(".weight"):
        return theirs.removesuffix("weight") + "scales", theirs.removesuffix("weight") + "scales_and_zeros"
    return (f"{theirs[:-2]}scales{theirs[-1]}",)


def _padded(inputs: int) -> int:
    """The width that gpt-fast pads matrices to if its tiles or groups do not divide their own."""
    return -(-inputs // 1024) * 1024


def _fused(theirs: str) -> str:
    return ".".join([*theirs.split(".")[:3], "wqkv.weight"])
