"""gpt-fast's model.pth: Meta's names, q, k and v fused, rotary channels as neighbours, and no configuration."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from genwright.text.checkpoints import Checkpoint, cast
from genwright.text.checkpoints.pickled import is_pickled, load_pickled
from genwright.text.checkpoints.rope_order import halves_from_neighbours
from genwright.text.config import ModelConfig
from genwright.text.fields import read_json
from genwright.text.shapes import find_shape
from genwright.text.tokenizer import Tokenizer

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


class GptFast(Checkpoint):
    """Also the stories models, whose dictionary is nested as {"model": ...} and whose q, k and v are apart."""

    def __init__(self, path: Path, arch: str | None = None):
        self.path = str(path)
        self._tensors = _tensors(load_pickled(path))
        numbers = [int(found[1]) for name in self._tensors if (found := re.match(r"layers\.([0-9]{1,4})\.", name))]
        self._layers = 1 + max(numbers, default=-1)
        self.hf_config: dict[str, Any] = self._find_config(path, arch)
        self.config = ModelConfig.from_hf(self.hf_config, self.path)
        self._names = dict(self._hugging_face_names())

    @staticmethod
    def recognises(path: Path) -> bool:
        return is_pickled(path) and "tok_embeddings.weight" in _tensors(load_pickled(path))

    def names(self) -> Sequence[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._stored(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._stored(name).dtype

    def where(self, name: str) -> str:
        return self.path

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = cast(self._stored(name), dtype, f"{self.path} stores {name!r}")
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = halves_from_neighbours(tensor, self.config.head_dim)
        return tensor

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_folder(Path(self.path).parent)

    def generation_eos(self) -> tuple[int, ...]:
        return ()

    def _hugging_face_names(self) -> Iterator[tuple[str, str]]:
        """Ours to theirs, for the tensors that are there; parts of a fused `wqkv` by the name they would have."""
        for ours, theirs in OUTER.items():
            if theirs in self._tensors:
                yield ours, theirs
        for layer in range(self._layers):
            for ours, theirs in LAYER.items():
                theirs = f"layers.{layer}.{theirs}"
                if theirs in self._tensors or (_is_qkv(theirs) and _fused(theirs) in self._tensors):
                    yield f"model.layers.{layer}.{ours}", theirs

    def _stored(self, name: str) -> torch.Tensor:
        """A tensor of the file, or the rows of a fused one, by their Hugging Face name."""
        theirs = self._names[name]
        if theirs in self._tensors:
            return self._tensors[theirs]
        fused, q, kv = self._tensors[_fused(theirs)], self.config.q_dim, self.config.kv_dim
        rows = {"wq": slice(q), "wk": slice(q, q + kv), "wv": slice(q + kv, None)}[theirs.split(".")[3]]
        return fused[rows] if fused.dim() else fused

    def _find_config(self, path: Path, arch: str | None) -> dict[str, Any]:
        """From `config.json` beside it, else from the name given, else from the one named shape that fits."""
        if arch is None and (path.parent / "config.json").exists():
            return read_json(path.parent / "config.json")
        return find_shape(path, arch, self._fits)

    def _fits(self, shape: dict[str, Any]) -> bool:
        if shape["model_type"] not in ("llama", "mistral"):
            return False
        head_dim = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
        kv = shape["num_key_value_heads"] * head_dim
        expected = {
            "tok_embeddings.weight": (shape["vocab_size"], shape["hidden_size"]),
            "layers.0.feed_forward.w1.weight": (shape["intermediate_size"], shape["hidden_size"]),
        }
        if "layers.0.attention.wqkv.weight" in self._tensors:
            expected["layers.0.attention.wqkv.weight"] = (
                shape["num_attention_heads"] * head_dim + 2 * kv,
                shape["hidden_size"],
            )
        else:
            expected["layers.0.attention.wk.weight"] = (kv, shape["hidden_size"])
        here = all(n in self._tensors and tuple(self._tensors[n].shape) == s for n, s in expected.items())
        return here and shape["num_hidden_layers"] == self._layers


def _tensors(loaded: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a possibly nested file; torch.compile's `_orig_mod.` prefix is dropped."""
    inner = loaded.get("model")
    items = (inner if isinstance(inner, dict) else loaded).items()
    return {str(k).removeprefix("_orig_mod."): v for k, v in items if isinstance(v, torch.Tensor)}


def _is_qkv(theirs: str) -> bool:
    return theirs.split(".")[3] in ("wq", "wk", "wv")


def _fused(theirs: str) -> str:
    return ".".join([*theirs.split(".")[:3], "wqkv.weight"])
