"""DeepSeek-V2, V3, R1 and V3.1: latent attention, experts, and V3's multi-token-prediction layer."""

from collections.abc import Mapping
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.architectures import llama
from genwright.text.architectures.config_fields import check_silu
from genwright.text.architectures.llama import ROUTER, expert_map, mlp_map, outer_map
from genwright.text.architectures.protocol import GGUF_EXPERTS, GGUF_LAYER, Gguf
from genwright.text.architectures.rope_config import read_rope
from genwright.text.architectures.shape_rows import Row, configs
from genwright.text.architectures.weight_map import Source, Sources, WeightMap, vocabulary
from genwright.text.cache.layout import LayerCache, LayerSpec
from genwright.text.config import Mla, ModelConfig, Moe
from genwright.text.config_file import FieldReader
from genwright.text.ops.protocol import LATENT_EPS, Ops, Weights
from genwright.text.ops.step import Step

CLASSES = {"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}
SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers of scoring functions


def _gguf_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files since April 2025 have the heads' sizes under names with _mla, because their attention is on the latent."""
    sigmoid = fields.get("expert_gating_func", SOFTMAX) == SIGMOID
    rope_dim = fields.get("rope.dimension_count", 0)
    head_dim = fields.get("attention.key_length_mla", fields.get("attention.key_length", 0))
    groups, family = fields.get("expert_group_count", 1), "deepseek_v3" if sigmoid else "deepseek_v2"
    return {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "q_lora_rank": fields.get("attention.q_lora_rank"),
        "kv_lora_rank": fields.get("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": head_dim - rope_dim if isinstance(head_dim, int) and isinstance(rope_dim, int) else None,
        "v_head_dim": fields.get("attention.value_length_mla", fields.get("attention.value_length")),
        "first_k_dense_replace": fields.get("leading_dense_block_count"),
        "n_routed_experts": fields.get("expert_count"),
        "num_experts_per_tok": fields.get("expert_used_count"),
        "moe_intermediate_size": fields.get("expert_feed_forward_length"),
        "n_shared_experts": fields.get("expert_shared_count"),
        "n_group": groups,
        "topk_group": fields.get("expert_group_used_count", 1),
        "topk_method": "noaux_tc" if sigmoid else "greedy" if groups == 1 else "group_limited_greedy",
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "norm_topk_prob": fields.get("expert_weights_norm", False),
        "routed_scaling_factor": fields.get("expert_weights_scale", 1.0),
    }


_GGUF_NAMES = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
GGUF = {"deepseek2": Gguf("deepseek_v2", {**GGUF_LAYER, **GGUF_EXPERTS, **_GGUF_NAMES}, _gguf_config, head_dims=())}

embed, final_norm, head = llama.embed, llama.final_norm, llama.head


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    assert cfg.mla is not None
    first = ops.norm_linear(x, weights, "attention_norm", "qkv_a", cfg.norm_eps)
    latent = _a_rows(cfg)[1]
    q, kv = first.split((first.shape[-1] - latent, latent), dim=-1)  # a rank may have only some of the queries
    if cfg.mla.q_lora_rank:
        q = ops.norm_linear(q, weights, "q_norm", "q_b", LATENT_EPS)
    attended = ops.latent_attend(q, kv, weights, cfg.mla, cfg.attention[0], cache, step)
    x, attended = step.needed(cache.layer, x, attended)
    x = ops.add_linear(x, attended, weights, "out")
    if cfg.moe is not None and "router" in weights:
        return ops.add_moe(x, weights, "mlp_norm", cfg.norm_eps, cfg.moe)
    return ops.add_gated_mlp(x, weights, "mlp_norm", cfg.norm_eps)


def predict(
    ops: Ops, cfg: ModelConfig, outer: Weights, weights: Weights, cache: LayerCache, hidden: torch.Tensor, step: Step
) -> tuple[torch.Tensor, torch.Tensor]:
    """The multi-token-prediction layer (DeepSeek-V3, equations 21 to 23): logits of the token after `step.tokens`.

    hidden [tokens, dim] is the model's normed output for the token before each of the step's, or what this function
    returned for it. Returns logits [rows, vocab] and the new hidden [tokens, dim].
    """
    x = embed(ops, cfg, outer, step)
    pair = (ops.norm(x, weights, "embed_norm", cfg.norm_eps), ops.norm(hidden, weights, "hidden_norm", cfg.norm_eps))
    x = block(ops, cfg, weights, cache, ops.linear(torch.cat(pair, dim=-1), weights, "join"), step)
    hidden = ops.norm(x, weights, "norm", cfg.norm_eps)
    return ops.linear(step.wanted(hidden), outer, "head"), hidden


def _a_rows(cfg: ModelConfig) -> tuple[int, int]:
    """Output rows of the first projections: queries or their latent, and the latent of keys and values."""
    assert cfg.mla is not None
    return cfg.mla.q_lora_rank or cfg.q_dim, cfg.mla.kv_lora_rank + cfg.mla.qk_rope_head_dim


def cache_layers(cfg: ModelConfig) -> list[LayerSpec]:
    return [LayerSpec({"latent": (_a_rows(cfg)[1],)})] * cfg.layers


def weight_map(cfg: ModelConfig) -> WeightMap:
    assert cfg.mla is not None
    d, mla = cfg.dim, cfg.mla
    first, latent = _a_rows(cfg)
    q_dim, kv_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.qk_nope_head_dim + mla.v_head_dim  # of a head
    query = Source("self_attn.q_a_proj.weight", (first, d))
    if not mla.q_lora_rank:
        query = Source("self_attn.q_proj.weight", (first, d), 0, q_dim)
    layer: dict[str, Sources] = {
        "attention_norm": [Source("input_layernorm.weight", (d,))],
        "qkv_a": [query, Source("self_attn.kv_a_proj_with_mqa.weight", (latent, d))],
        "kv_norm": [Source("self_attn.kv_a_layernorm.weight", (mla.kv_lora_rank,))],
        "kv_b": [Source("self_attn.kv_b_proj.weight", (cfg.heads * kv_dim, mla.kv_lora_rank), 0, kv_dim)],
        "out": [Source("self_attn.o_proj.weight", (d, cfg.heads * mla.v_head_dim), 1, mla.v_head_dim)],
        "mlp_norm": [Source("post_attention_layernorm.weight", (d,))],
    }
    if mla.q_lora_rank:
        layer["q_norm"] = [Source("self_attn.q_a_layernorm.weight", (mla.q_lora_rank,))]
        layer["q_b"] = [Source("self_attn.q_b_proj.weight", (cfg.q_dim, mla.q_lora_rank), 0, q_dim)]
    dense, sparse = {**layer, **mlp_map(cfg)}, {**layer, **expert_map(cfg)}
    draft: dict[str, Sources] = {
        "embed_norm": [Source("enorm.weight", (d,))],
        "hidden_norm": [Source("hnorm.weight", (d,))],
        "join": [Source("eh_proj.weight", (d, 2 * d))],
        **sparse,
        "norm": [Source("shared_head.norm.weight", (d,))],
    }
    copies = [
        vocabulary(f"model.layers.{cfg.layers}.{name}.weight", cfg.vocab_size, d)
        for name in ("embed_tokens", "shared_head.head")
    ]
    return WeightMap(
        outer_map(cfg),
        [sparse if cfg.has_experts(i) else dense for i in range(cfg.layers)],
        "model.layers.{}.",
        draft=draft if cfg.draft_layers else {},
        copies=copies if cfg.draft_layers else (),
        exact=ROUTER,
        unpacked=frozenset({"kv_b"}),
    )


def read_config(read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
    layers, heads = sizes["layers"], sizes["heads"]
    if read.flag("attention_bias", False) or read.flag("mlp_bias", False):
        raise UserError(f"{read.where} has biases, which are not supported: no published {family} has any.")
    check_silu(read)
    mla = Mla(
        # Without a latent of queries it is 0 in DeepSeek's own files and null in Hugging Face's.
        q_lora_rank=read.integer("q_lora_rank", 0, 1 << 20, default=0) or None,
        kv_lora_rank=read.integer("kv_lora_rank", 1, 1 << 20),
        qk_nope_head_dim=read.integer("qk_nope_head_dim", 1, 1 << 16),
        qk_rope_head_dim=read.integer("qk_rope_head_dim", 2, 1 << 16),
        v_head_dim=read.integer("v_head_dim", 1, 1 << 16),
        rope_interleave=read.flag("rope_interleave", True),
    )
    return ModelConfig(
        architecture="deepseek",
        **sizes,
        kv_heads=heads,
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=read_rope(read, mla.qk_rope_head_dim),
        tied=read.flag("tie_word_embeddings", False),
        windows=(None,) * layers,
        moe=_read_experts(read, family == "DeepseekV3ForCausalLM", layers),
        mla=mla,
        draft_layers=read.integer("num_nextn_predict_layers", 0, 16, default=0),
    )


def _read_experts(read: FieldReader, v3: bool, layers: int) -> Moe:
    """V2 has softmax scores, V3 sigmoid scores and a correction bias."""
    scores = "sigmoid" if v3 else "softmax"
    if read.text("scoring_func", scores) != scores:
        raise read.wrong("scoring_func", f"{scores}, the only one of this architecture")
    method = read.text("topk_method", "noaux_tc" if v3 else "greedy")
    known = ("noaux_tc",) if v3 else ("greedy", "group_limited_greedy")
    if method not in known:
        raise read.wrong("topk_method", " or ".join(known))
    experts = read.integer("n_routed_experts", 1, 4096)
    groups = 1 if method == "greedy" else read.integer("n_group", 1, experts, default=1)
    top_groups = 1 if method == "greedy" else read.integer("topk_group", 1, groups, default=1)
    smallest = 2 if v3 and groups > 1 else 1  # V3 ranks a group by the sum of its two best experts
    if experts % groups or experts // groups < smallest:
        raise read.wrong("n_group", f"a number of equal groups of the {experts} experts")
    first = read.integer("first_k_dense_replace", 0, 4096, default=0)
    every = read.integer("moe_layer_freq", 1, 4096, default=1)
    ffn_dim = read.integer("moe_intermediate_size", 1, 1 << 22)
    return Moe(
        layers=tuple(layer >= first and layer % every == 0 for layer in range(layers)),
        experts=experts,
        top_k=read.integer("num_experts_per_tok", 1, experts // groups * top_groups),
        ffn_dim=ffn_dim,
        shared_dim=ffn_dim * read.integer("n_shared_experts", 0, 4096, default=0),
        scores=scores,
        groups=groups,
        top_groups=top_groups,
        correction_bias=v3,
        normalise=read.flag("norm_topk_prob", v3),
        scale=read.number("routed_scaling_factor", 1.0),
    )


_DEEPSEEK = {"rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "n_shared_experts": 2, "num_experts_per_tok": 6}
_DEEPSEEK |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_DEEPSEEK2 = {**_DEEPSEEK, "model_type": "deepseek_v2"}
_DEEPSEEK3 = {**_DEEPSEEK, "model_type": "deepseek_v3"}


def _yarn(mscale: float) -> dict[str, Any]:
    """DeepSeek's RoPE scaling from 4,096 to 163,840 positions."""
    settings = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    return {"rope_scaling": {**settings, "beta_fast": 32, "beta_slow": 1, "mscale": mscale, "mscale_all_dim": mscale}}


_ROWS: dict[str, Row] = {
    "deepseek-v2-lite": (
        *(_DEEPSEEK2, 2048, 27, 16, 16, 10944, 102400, 163840, 1e4),
        _yarn(0.707)
        | {"n_routed_experts": 64, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "q_lora_rank": None},
    ),
    "deepseek-v2": (
        *(_DEEPSEEK2, 5120, 60, 128, 128, 12288, 102400, 163840, 1e4),
        _yarn(1.0)
        | {"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "q_lora_rank": 1536}
        | {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0},
    ),
    "deepseek-v3": (
        *(_DEEPSEEK3, 7168, 61, 128, 128, 18432, 129280, 163840, 1e4),
        _yarn(1.0)
        | {"n_routed_experts": 256, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "q_lora_rank": 1536}
        | {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "n_shared_experts": 1}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True, "num_nextn_predict_layers": 1},
    ),
}
SHAPES = configs(_ROWS)
ALIASES = {"deepseek-r1": "deepseek-v3", "deepseek-v3.1": "deepseek-v3"}
