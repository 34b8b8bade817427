"""Architecture: what a file of this folder provides. The registry lists the files, and mypy checks each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from genwright.text.architectures.weight_map import WeightMap
from genwright.text.cache.layout import LayerCache, LayerSpec
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Step

# GGUF's tensor names to Hugging Face's; those of a layer follow "blk.N." and "model.layers.N.".
GGUF_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Gguf:
    """How llama.cpp's files of one of its architectures differ from Hugging Face's."""

    model_type: str
    layer: Mapping[str, str]  # names of a layer's tensors
    config: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing  # config.json's further fields, of the metadata
    neighbours: bool = False  # rows of q and k are ordered so that neighbouring channels rotate against each other
    norm_offset: float = 0.0  # added to the weights of norms


class Architecture(Protocol):
    """Models that share embed, block and head; their differences are fields of ModelConfig."""

    @property
    def CLASSES(self) -> Mapping[str, str]:
        """By `model_type`, Hugging Face's class."""
        ...

    @property
    def SHAPES(self) -> Mapping[str, Mapping[str, Any]]:
        """Published models by name, as config.json has them."""
        ...

    @property
    def ALIASES(self) -> Mapping[str, str]:
        """Other names of those."""
        ...

    @property
    def GGUF(self) -> Mapping[str, Gguf]:
        """By llama.cpp's name of the architecture."""
        ...

    def read_config(self, read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
        """A config.json of the class `family`; `sizes` are the fields that all families share."""
        ...

    def weight_map(self, cfg: ModelConfig) -> WeightMap: ...

    def cache_layers(self, cfg: ModelConfig) -> Sequence[LayerSpec]:
        """What each layer stores."""
        ...

    def embed(self, ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
        """The step's tokens as vectors [tokens, dim]."""
        ...

    def block(
        self, ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """One layer: x [tokens, dim]."""
        ...

    def head(self, ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Logits [rows, vocab] of the rows that the step asks for."""
        ...
