"""DeepSeek-V2, V3, R1 and V3.1: latent attention, mixtures of experts, and V3's multi-token-prediction layer."""

import torch

from genwright.text.architectures.llama import ROUTER, embed, expert_map, head, mlp_map
from genwright.text.architectures.weight_map import Sources, WeightMap
from genwright.text.cache.layout import LayerCache, LayerSpec
from genwright.text.config import ModelConfig
from genwright.text.ops.protocol import LATENT_EPS, Ops, Weights
from genwright.text.ops.step import Step

__all__ = ["block", "cache_layers", "embed", "head", "predict", "weight_map"]


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    assert cfg.mla is not None
    q, kv = ops.norm_linear(x, weights, "attention_norm", "qkv_a", cfg.norm_eps).split(_a_rows(cfg), dim=-1)
    if cfg.mla.q_lora_rank:
        q = ops.norm_linear(q, weights, "q_norm", "q_b", LATENT_EPS)
    mixed = ops.latent_attend(q, kv, weights, cfg.mla, cfg.attention[0], cache, step)
    x = ops.add_linear(x, mixed, weights, "out")
    if cfg.moe is not None and "router" in weights:
        return ops.add_moe(x, weights, "mlp_norm", cfg.norm_eps, cfg.moe)
    return ops.add_gated_mlp(x, weights, "mlp_norm", cfg.norm_eps)


def predict(
    ops: Ops,
    cfg: ModelConfig,
    outer: Weights,
    weights: Weights,
    cache: LayerCache,
    hidden: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The multi-token-prediction layer (DeepSeek-V3, equations 21 to 23): logits of the token after `step.tokens`.

    hidden [tokens, dim] is the model's output after its final norm where it read the token before each of the step's,
    or what this function returned there. Returns logits [rows, vocab] and the new hidden [tokens, dim].
    """
    x = embed(ops, cfg, outer, step)
    pair = (ops.norm(x, weights, "embed_norm", cfg.norm_eps), ops.norm(hidden, weights, "hidden_norm", cfg.norm_eps))
    x = block(ops, cfg, weights, cache, ops.linear(torch.cat(pair, dim=-1), weights, "join"), step)
    hidden = ops.norm(x, weights, "norm", cfg.norm_eps)
    return ops.linear(hidden[step.logit_rows], outer, "head"), hidden


def _a_rows(cfg: ModelConfig) -> tuple[int, int]:
    """Outputs of the first projections: of queries, whole or their latent, and of keys and values."""
    assert cfg.mla is not None
    return cfg.mla.q_lora_rank or cfg.q_dim, cfg.mla.kv_lora_rank + cfg.mla.qk_rope_head_dim


def cache_layers(cfg: ModelConfig) -> list[LayerSpec]:
    return [LayerSpec({"latent": (_a_rows(cfg)[1],)})] * cfg.layers


def weight_map(cfg: ModelConfig) -> WeightMap:
    """Our weights as Hugging Face's tensors with their shapes; several fuse along their first dimension."""
    assert cfg.mla is not None
    d, mla = cfg.dim, cfg.mla
    first, latent = _a_rows(cfg)
    q_name = "q_a_proj" if mla.q_lora_rank else "q_proj"
    layer: dict[str, Sources] = {
        "attention_norm": [("input_layernorm.weight", (d,))],
        "qkv_a": [
            (f"self_attn.{q_name}.weight", (first, d)),
            ("self_attn.kv_a_proj_with_mqa.weight", (latent, d)),
        ],
        "kv_norm": [("self_attn.kv_a_layernorm.weight", (mla.kv_lora_rank,))],
        "kv_b": [
            (
                "self_attn.kv_b_proj.weight",
                (cfg.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
            )
        ],
        "out": [("self_attn.o_proj.weight", (d, cfg.heads * mla.v_head_dim))],
        "mlp_norm": [("post_attention_layernorm.weight", (d,))],
    }
    if mla.q_lora_rank:
        layer["q_norm"] = [("self_attn.q_a_layernorm.weight", (mla.q_lora_rank,))]
        layer["q_b"] = [("self_attn.q_b_proj.weight", (cfg.q_dim, mla.q_lora_rank))]
    outer: dict[str, Sources] = {
        "embed": [("model.embed_tokens.weight", (cfg.vocab_size, d))],
        "norm": [("model.norm.weight", (d,))],
    }
    if not cfg.tied:
        outer["head"] = [("lm_head.weight", (cfg.vocab_size, d))]
    dense, sparse = {**layer, **mlp_map(cfg)}, {**layer, **expert_map(cfg)}
    draft: dict[str, Sources] = {
        "embed_norm": [("enorm.weight", (d,))],
        "hidden_norm": [("hnorm.weight", (d,))],
        "join": [("eh_proj.weight", (d, 2 * d))],
        **sparse,
        "norm": [("shared_head.norm.weight", (d,))],
    }
    blocks = [sparse if cfg.has_experts(i) else dense for i in range(cfg.layers)]
    draft = draft if cfg.draft_layers else {}
    return WeightMap(outer, blocks, "model.layers.{}.", draft, exact=ROUTER, unpacked=frozenset({"kv_b"}))
