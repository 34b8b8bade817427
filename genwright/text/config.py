"""ModelConfig: the shape of a text model, read from a checkpoint's configuration and checked there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

ROPE, LOCAL_ROPE = "global", "local"  # keys of a model's RoPE tables


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: its base, and how its frequencies are scaled for long contexts."""

    theta: float = 10000.0
    kind: str = "default"  # default, linear, dynamic, llama3, yarn, longrope, proportional, factors; none
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attention:
    """Settings of one layer's attention."""

    scale: float
    window: int | None = None  # tokens that a query sees, including its own; None for all
    rope: str | None = ROPE  # key of the RoPE table; None for learned positions
    norm_eps: float = 0.0  # of the query and key norms, if there are any


@dataclass(frozen=True)
class Moe:
    """A mixture of experts, which replaces the MLP of some layers."""

    layers: tuple[bool, ...]  # which layers have one
    experts: int
    top_k: int  # experts per token
    ffn_dim: int  # of an expert
    shared_dim: int = 0  # total FFN dim of the shared experts, which process every token
    shared_gate: bool = False  # the shared experts' output is multiplied by a sigmoid gate
    scores: str = "softmax"  # or sigmoid
    groups: int = 1  # of experts; a token's experts come from its best `top_groups` groups
    top_groups: int = 1
    correction_bias: bool = False  # added to the scores to choose experts, but not to weight them
    normalise: bool = False  # the chosen experts' weights sum to one
    scale: float = 1.0  # of the weights, after normalisation
    mixtral_names: bool = False  # tensors have Mixtral's names: block_sparse_moe, w1, w2, w3


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values are projections of one small vector."""

    q_lora_rank: int | None  # None: queries are projected directly
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool  # neighbouring channels rotate together, not halves


@dataclass(frozen=True)
class Opt:
    """Settings that only OPT has."""

    embed_dim: int  # of the token embedding, which is projected if it differs from the model's dim
    activation: str  # relu or gelu
    pre_norm: bool  # False in 350m, where norms follow the sublayer and the head has none
    final_norm: bool
    affine: bool  # norms have weights and biases


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer."""

    architecture: str
    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int  # of layers without experts
    max_context: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]  # of each layer; None for full attention
    eos_ids: tuple[int, ...]
    dtype: str  # of the stored weights: float32, float16 or bfloat16
    tied: bool = False  # the head is the embedding
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    opt: Opt | None = None
    local_rope: Rope | None = None  # of layers with a window; None if the same as `rope`
    query_scale: float | None = None  # attention scores are divided by its square root; None is head_dim
    draft_layers: int = 0  # for multi-token prediction; the checkpoint may still lack them

    @property
    def longest_context(self) -> int:
        """The longest context that can be set: RoPE scaling may reach beyond `max_context`, the default."""
        settings, reached = self.rope.settings, 0.0
        if self.rope.kind in ("linear", "dynamic"):
            reached = self.max_context * settings["factor"]
        elif self.rope.kind == "yarn":
            reached = settings["original_max_position_embeddings"] * settings["factor"]
        return max(self.max_context, int(min(reached, 1 << 30)))

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def rope_dim(self) -> int:
        return self.mla.qk_rope_head_dim if self.mla else self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and self.moe.layers[layer]

    @cached_property
    def attention(self) -> tuple[Attention, ...]:
        """The settings of each layer."""
        scale = (self.query_scale or self.head_dim) ** -0.5 * self._temperature**2
        rope = None if self.rope.kind == "none" else ROPE
        local = LOCAL_ROPE if self.local_rope is not None else rope
        return tuple(Attention(scale, w, rope if w is None else local, self.norm_eps) for w in self.windows)

    @property
    def _temperature(self) -> float:
        """YaRN's attention temperature, which DeepSeek applies to all channels by `mscale_all_dim`."""
        settings = self.rope.settings
        if self.mla is None or self.rope.kind != "yarn" or settings["factor"] <= 1:
            return 1.0
        return float(1.0 + 0.1 * settings.get("mscale_all_dim", 0.0) * math.log(settings["factor"]))
