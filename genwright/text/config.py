"""ModelConfig: what a text model is, checked once, built from any checkpoint's own configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

ROPE, LOCAL_ROPE = "global", "local"  # the two kinds of RoPE that a model may have


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: the base, and how its frequencies are stretched for long contexts."""

    theta: float = 10000.0
    kind: str = "default"  # default, linear, dynamic, llama3, yarn, longrope, proportional, factors; none
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attention:
    """What the attention of one layer needs beside its weights."""

    scale: float
    window: int | None = None  # tokens that a query can see, its own among them; None for all
    rope: str | None = ROPE  # which of the model's tables of cos and sin; None for learned positions
    norm_eps: float = 0.0  # of the norms of queries and keys, where the layer has such


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in place of some layers' MLP: how tokens find their experts, and how large those are."""

    layers: tuple[bool, ...]  # which layers have one
    experts: int
    top_k: int  # experts of a token
    ffn_dim: int  # of an expert
    shared_dim: int  # of the experts that every token visits, together; 0 for none
    shared_gate: bool  # the shared experts' sum is weighted by a sigmoid of its own
    scores: str  # softmax or sigmoid
    groups: int  # of experts; a token's experts are in the best `top_groups` of them
    top_groups: int
    correction_bias: bool  # added to the scores for the choice of experts, not for their weights
    normalise: bool  # the chosen experts' weights sum to one
    scale: float  # of the weights, afterwards
    mixtral_names: bool = False  # tensors are called as Mixtral's are: block_sparse_moe, w1, w2, w3


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values are projections of one small vector."""

    q_lora_rank: int | None  # None: queries are projected directly
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool  # neighbouring channels rotate against each other, not halves


@dataclass(frozen=True)
class Opt:
    """What OPT does unlike Llama beside its learned positions."""

    embed_dim: int  # of the token embedding; projected to and from the model's where that is another
    activation: str  # relu or gelu
    pre_norm: bool  # False for 350m: norms follow their sublayer, and none precedes the head
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
    ffn_dim: int  # of a layer without experts
    max_context: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]  # per layer: how many tokens back attention reaches, None for all
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
    local_rope: Rope | None = None  # of layers with a window, where it is another than `rope`
    query_scale: float | None = None  # attention divides by its root; None is head_dim
    draft_layers: int = 0  # for multi-token prediction; a checkpoint may lack them all the same

    @property
    def longest_context(self) -> int:
        """What the context may be set to: some RoPE scalings reach beyond `max_context`, which is the default."""
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
        """Of each layer."""
        scale = (self.query_scale or self.head_dim) ** -0.5 * self._temperature**2
        rope = None if self.rope.kind == "none" else ROPE
        local = LOCAL_ROPE if self.local_rope is not None else rope
        return tuple(Attention(scale, w, rope if w is None else local, self.norm_eps) for w in self.windows)

    @property
    def _temperature(self) -> float:
        """YaRN's, where DeepSeek's configuration gives it for all channels: it grows attention's scale."""
        settings = self.rope.settings
        if self.mla is None or self.rope.kind != "yarn" or settings["factor"] <= 1:
            return 1.0
        return float(1.0 + 0.1 * settings.get("mscale_all_dim", 0.0) * math.log(settings["factor"]))
