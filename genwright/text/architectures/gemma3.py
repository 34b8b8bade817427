"""Gemma 3 (text): GeGLU, norms before and after each sublayer, windows in five of six layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.architectures import llama
from genwright.text.architectures.config_fields import each_head, read_heads, read_layer_types
from genwright.text.architectures.protocol import GGUF_LAYER, Gguf
from genwright.text.architectures.rope_config import read_rope
from genwright.text.architectures.shape_rows import Row, configs
from genwright.text.architectures.weight_map import Source, WeightMap
from genwright.text.cache.layout import LayerCache
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Step

CLASSES = {"gemma3_text": "Gemma3ForCausalLM"}
PATTERN = 6  # every sixth layer has full attention
LOCAL_BASE = 10000.0  # RoPE base of layers with a window
NORMS = ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm", "q_norm", "k_norm", "norm")


def embed(ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
    x = ops.embedding(step.tokens, weights, "embed")
    return x * torch.tensor(cfg.dim**0.5, dtype=x.dtype)


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    eps = cfg.norm_eps
    qkv = ops.norm_linear(x, weights, "attention_norm", "qkv", eps)
    attended = ops.rope_attend(qkv, weights, cfg.attention[cache.layer], cache, step)
    x, attended = step.needed(cache.layer, x, attended)
    x = ops.add_linear(x, attended, weights, "out", "post_attention_norm", eps)
    return ops.add_gated_mlp(x, weights, "mlp_norm", eps, "gelu_tanh", "post_mlp_norm")


final_norm, head = llama.final_norm, llama.head
cache_layers = llama.cache_layers


def weight_map(cfg: ModelConfig) -> WeightMap:
    """Llama's, and a norm after each sublayer. Norm weights are stored minus one."""
    plain = llama.weight_map(cfg)
    names = {
        "post_attention_norm": "post_attention",
        "mlp_norm": "pre_feedforward",
        "post_mlp_norm": "post_feedforward",
    }
    norms = {ours: [Source(f"{theirs}_layernorm.weight", (cfg.dim,))] for ours, theirs in names.items()}
    return replace(plain, blocks=[{**block, **norms} for block in plain.blocks], one_added=frozenset(NORMS))


def read_config(read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
    activation = read.text("hidden_activation", read.text("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        raise UserError(f"{read.where} has the activation {short(activation)}; Gemma 3 needs gelu_pytorch_tanh.")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention", "attention_bias"):
        if read.config.get(key):
            raise read.wrong(key, "null or false")
    head_dim, kv_heads = read_heads(read, sizes["dim"], sizes["heads"])
    every = read.integer("sliding_window_pattern", 1, 4096, default=PATTERN)
    kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(sizes["layers"])]
    given = read.config.get("layer_types")
    window = read.integer("sliding_window", 1, 1 << 30, default=4096)
    whole, local = _ropes(read)
    return ModelConfig(
        architecture="gemma3",
        **sizes,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=read_rope(whole, head_dim),
        local_rope=read_rope(local, head_dim),
        query_scale=read.number("query_pre_attn_scalar", float(head_dim)),
        tied=read.flag("tie_word_embeddings", True),
        qk_norm=True,
        windows=read_layer_types(read, window, kinds if given is None else given, sizes["layers"]),
    )


def _ropes(read: FieldReader) -> tuple[FieldReader, FieldReader]:
    """RoPE of layers without and with a window: nested since transformers 5, in separate fields before."""
    both = read.table("rope_parameters")
    context = {"max_position_embeddings": read.config.get("max_position_embeddings", 2048)}
    if "full_attention" in both.config:
        whole, local = (both.table(f"{kind}_attention") for kind in ("full", "sliding"))
        return tuple(FieldReader({"rope_parameters": r.config, **context}, r.where) for r in (whole, local))  # type: ignore[return-value]
    base = read.number("rope_local_base_freq", LOCAL_BASE)
    plain = {**read.config, "rope_theta": read.number("rope_theta", 1e6)}
    return FieldReader(plain, read.where), FieldReader({"rope_theta": base, **context}, read.where)


def _gguf_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that llama.cpp does not store; the query scale is the head dimension, except with 62 layers."""
    each = each_head(fields["embedding_length"], fields["attention.head_count"])
    return {
        "sliding_window": fields.get("attention.sliding_window"),
        "rope_local_base_freq": LOCAL_BASE,
        "query_pre_attn_scalar": each if fields["block_count"] == 62 else fields.get("attention.key_length", each),
    }


_NORM_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF = {"gemma3": Gguf("gemma3_text", {**GGUF_LAYER, **_NORM_NAMES}, _gguf_config, norm_offset=1.0)}

_GEMMA = {"model_type": "gemma3_text", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6, "head_dim": 256}
_GEMMA |= {"tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 512}
_GEMMA_LONG = {**_GEMMA, "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
_GEMMA_27B = {**_GEMMA_LONG, "head_dim": 128, "query_pre_attn_scalar": 168}
_ROWS: dict[str, Row] = {
    "gemma-3-270m": (_GEMMA, 640, 18, 4, 1, 2048, 262144, 32768, 1e6, {}),
    "gemma-3-1b": (_GEMMA, 1152, 26, 4, 1, 6912, 262144, 32768, 1e6, {}),
    "gemma-3-4b": (_GEMMA_LONG, 2560, 34, 8, 4, 10240, 262208, 131072, 1e6, {}),
    "gemma-3-12b": (_GEMMA_LONG, 3840, 48, 16, 8, 15360, 262208, 131072, 1e6, {}),
    "gemma-3-27b": (_GEMMA_27B, 5376, 62, 32, 16, 21504, 262208, 131072, 1e6, {}),
}
SHAPES = configs(_ROWS)
ALIASES: dict[str, str] = {}
