"""The Llama family: Llama 1 to 3.2, CodeLlama, Mistral and Mixtral, Qwen2, 2.5 and 3 with experts or without."""

import torch

from genwright.text.architectures.weight_map import Sources, WeightMap
from genwright.text.cache.layout import LayerCache, LayerSpec
from genwright.text.config import ModelConfig
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Step


def embed(ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
    return ops.embedding(step.tokens, weights, "embed")


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    qkv = ops.norm_linear(x, weights, "attention_norm", "qkv", cfg.norm_eps)
    x = ops.add_linear(x, ops.rope_attend(qkv, weights, cfg.attention[cache.layer], cache, step), weights, "out")
    if cfg.moe is not None and "router" in weights:
        return ops.add_moe(x, weights, "mlp_norm", cfg.norm_eps, cfg.moe)
    return ops.add_gated_mlp(x, weights, "mlp_norm", cfg.norm_eps)


def head(ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
    """Logits [rows, vocab] of the rows that the step asks for."""
    return ops.norm_linear(x[step.logit_rows], weights, "norm", "head", cfg.norm_eps)


def cache_layers(cfg: ModelConfig) -> list[LayerSpec]:
    row = (cfg.kv_heads, cfg.head_dim)
    return [LayerSpec({"k": row, "v": row}, window) for window in cfg.windows]


def weight_map(cfg: ModelConfig) -> WeightMap:
    """Our weights as Hugging Face's tensors with their shapes; several fuse along their first dimension."""
    d, q, kv = cfg.dim, cfg.q_dim, cfg.kv_dim
    qkv = (("q", q), ("k", kv), ("v", kv))
    layer: dict[str, Sources] = {
        "attention_norm": [("input_layernorm.weight", (d,))],
        "qkv": [(f"self_attn.{name}_proj.weight", (rows, d)) for name, rows in qkv],
        "out": [("self_attn.o_proj.weight", (d, q))],
        "mlp_norm": [("post_attention_layernorm.weight", (d,))],
    }
    if cfg.qkv_bias:
        layer["qkv.bias"] = [(f"self_attn.{name}_proj.bias", (rows,)) for name, rows in qkv]
    if cfg.out_bias:
        layer["out.bias"] = [("self_attn.o_proj.bias", (d,))]
    if cfg.qk_norm:
        layer |= {f"{name}_norm": [(f"self_attn.{name}_norm.weight", (cfg.head_dim,))] for name in ("q", "k")}
    outer: dict[str, Sources] = {
        "embed": [("model.embed_tokens.weight", (cfg.vocab_size, d))],
        "norm": [("model.norm.weight", (d,))],
    }
    if not cfg.tied:
        outer["head"] = [("lm_head.weight", (cfg.vocab_size, d))]
    dense = {**layer, **mlp_map(cfg)}
    sparse = {**layer, **expert_map(cfg)}
    blocks = [sparse if cfg.has_experts(i) else dense for i in range(cfg.layers)]
    return WeightMap(outer, blocks, "model.layers.{}.", exact=ROUTER, unpacked=frozenset({"shared.gate"}))


ROUTER = frozenset({"router", "router.correction"})  # what chooses experts is not rounded


def mlp_map(cfg: ModelConfig) -> dict[str, Sources]:
    """A gated MLP, gate and up fused."""
    weights = gated(cfg.dim, cfg.ffn_dim, "mlp.")
    if cfg.mlp_bias:
        weights["gate_up.bias"] = [(f"mlp.{name}_proj.bias", (cfg.ffn_dim,)) for name in ("gate", "up")]
        weights["down.bias"] = [("mlp.down_proj.bias", (cfg.dim,))]
    return weights


def expert_map(cfg: ModelConfig) -> dict[str, Sources]:
    """A mixture of experts, each weight of all experts fused in one."""
    moe, d = cfg.moe, cfg.dim
    if moe is None:
        return {}
    home = "block_sparse_moe." if moe.mixtral_names else "mlp."
    gate, up, down = ("w1", "w3", "w2") if moe.mixtral_names else ("gate_proj", "up_proj", "down_proj")
    each = [f"{home}experts.{expert}." for expert in range(moe.experts)]
    weights: dict[str, Sources] = {
        "router": [(f"{home}gate.weight", (moe.experts, d))],
        "experts.gate_up": [(f"{e}{name}.weight", (moe.ffn_dim, d)) for e in each for name in (gate, up)],
        "experts.down": [(f"{e}{down}.weight", (d, moe.ffn_dim)) for e in each],
    }
    if moe.correction_bias:
        weights["router.correction"] = [(f"{home}gate.e_score_correction_bias", (moe.experts,))]
    if moe.shared_dim:
        shared = gated(d, moe.shared_dim, "mlp.shared_expert." if moe.shared_gate else "mlp.shared_experts.")
        weights |= {f"shared.{name}": sources for name, sources in shared.items()}
    if moe.shared_gate:
        weights["shared.gate"] = [("mlp.shared_expert_gate.weight", (1, d))]
    return weights


def gated(d: int, ffn: int, prefix: str) -> dict[str, Sources]:
    return {
        "gate_up": [(f"{prefix}{name}_proj.weight", (ffn, d)) for name in ("gate", "up")],
        "down": [(f"{prefix}down_proj.weight", (d, ffn))],
    }
