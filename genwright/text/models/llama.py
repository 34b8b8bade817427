"""The Llama family: Llama 1 to 3.2, CodeLlama, Mistral, Qwen2 and 2.5, Qwen3, SmolLM2, TinyLlama, stories."""

import torch
from torch.nn.functional import embedding

from genwright.text.config import ModelConfig
from genwright.text.engine.kv import CacheSpec, LayerCache
from genwright.text.engine.step import Step
from genwright.text.layers.reference import Reference, Weights
from genwright.text.models.weight_map import Sources, WeightMap


def embed(ops: Reference, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
    step.rope = (weights["cos"][step.positions], weights["sin"][step.positions])
    return embedding(step.tokens, weights["embed"])


def block(
    ops: Reference, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step
) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    qkv = ops.norm_linear(x, weights, "attention_norm", "qkv", cfg.norm_eps)
    q = ops.qkv_rope_write(qkv, weights, cfg, cache, step)
    mixed = ops.attend(q, cache, step, cfg.head_dim**-0.5, cfg.windows[cache.layer])
    x = x + ops.all_reduce(ops.linear(mixed, weights, "out"))
    return x + ops.all_reduce(ops.gated_mlp(x, weights, "mlp_norm", cfg.norm_eps))


def head(ops: Reference, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
    """Logits [rows, vocab] of the rows that the step asks for."""
    return ops.norm_linear(x[step.logit_rows], weights, "norm", "head", cfg.norm_eps)


def cache_spec(cfg: ModelConfig, dtype: torch.dtype) -> CacheSpec:
    row = (cfg.kv_heads, cfg.head_dim)
    return CacheSpec(cfg.layers, {"k": row, "v": row}, dtype)


def weight_map(cfg: ModelConfig) -> WeightMap:
    """Our weights as Hugging Face's tensors with their shapes; several fuse along their first dimension."""
    d, q, kv, ffn = cfg.dim, cfg.q_dim, cfg.kv_dim, cfg.ffn_dim
    qkv = (("q", q), ("k", kv), ("v", kv))
    layer: dict[str, Sources] = {
        "attention_norm": [("input_layernorm.weight", (d,))],
        "qkv": [(f"self_attn.{name}_proj.weight", (rows, d)) for name, rows in qkv],
        "out": [("self_attn.o_proj.weight", (d, q))],
        "mlp_norm": [("post_attention_layernorm.weight", (d,))],
        "gate_up": [(f"mlp.{name}_proj.weight", (ffn, d)) for name in ("gate", "up")],
        "down": [("mlp.down_proj.weight", (d, ffn))],
    }
    if cfg.qkv_bias:
        layer["qkv.bias"] = [(f"self_attn.{name}_proj.bias", (rows,)) for name, rows in qkv]
    if cfg.out_bias:
        layer["out.bias"] = [("self_attn.o_proj.bias", (d,))]
    if cfg.mlp_bias:
        layer["gate_up.bias"] = [(f"mlp.{name}_proj.bias", (ffn,)) for name in ("gate", "up")]
        layer["down.bias"] = [("mlp.down_proj.bias", (d,))]
    if cfg.qk_norm:
        layer |= {f"{name}_norm": [(f"self_attn.{name}_norm.weight", (cfg.head_dim,))] for name in ("q", "k")}
    outer: dict[str, Sources] = {
        "embed": [("model.embed_tokens.weight", (cfg.vocab_size, d))],
        "norm": [("model.norm.weight", (d,))],
    }
    if not cfg.tied:
        outer["head"] = [("lm_head.weight", (cfg.vocab_size, d))]
    return WeightMap(outer, layer, "model.layers.{}.")
