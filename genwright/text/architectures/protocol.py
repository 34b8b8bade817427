"""Architecture: the protocol of the modules in this folder, which mypy checks in the registry."""

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

# GGUF's names -> Hugging Face's; those of a layer follow "blk.N." and "model.layers.N.".
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
# A mixture's experts are stacked in one tensor; {} is an expert's index.
GGUF_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}


@dataclass(frozen=True)
class Gguf:
    """How llama.cpp writes an architecture."""

    model_type: str
    layer: Mapping[str, str]  # names of a layer's tensors, without or with their ".weight" or ".bias"
    config: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda fields: {}  # more config.json fields, from metadata
    neighbours: bool = False  # rows of q and k are ordered so that neighbouring channels rotate
    norm_offset: float = 0.0  # added to norm weights in the file
    # Metadata that give the head dimension, and must be equal.
    head_dims: Sequence[str] = ("attention.key_length", "attention.value_length", "rope.dimension_count")


class Architecture(Protocol):
    """Models that share `embed`, `block` and `head`; they differ in fields of ModelConfig."""

    @property
    def CLASSES(self) -> Mapping[str, str]: ...  # `model_type` -> Hugging Face's class

    @property
    def SHAPES(self) -> Mapping[str, Mapping[str, Any]]: ...  # name of a published model -> its config.json

    @property
    def ALIASES(self) -> Mapping[str, str]: ...  # another name -> name in SHAPES

    @property
    def GGUF(self) -> Mapping[str, Gguf]: ...  # by llama.cpp's name of the architecture

    def read_config(self, read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
        """Read the config.json of the class `family`; `sizes` are the fields that all architectures share."""
        ...

    def weight_map(self, cfg: ModelConfig) -> WeightMap: ...

    def cache_layers(self, cfg: ModelConfig) -> Sequence[LayerSpec]:
        """What each layer stores in the cache."""
        ...

    def embed(self, ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
        """The step's tokens as vectors [tokens, dim]."""
        ...

    def block(
        self, ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """One layer: x [tokens, dim]."""
        ...

    def final_norm(self, ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """The hidden states [tokens, dim] that the head's matrix multiplies."""
        ...

    def head(self, ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Logits [rows, vocab] of `step.logit_rows`."""
        ...
