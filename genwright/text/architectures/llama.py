"""The Llama family: Llama 1 to 3.2, CodeLlama, Mistral, Mixtral, and Qwen2, 2.5 and 3 with or without experts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from genwright.text.architectures.config_fields import check_silu, read_heads, read_layer_types
from genwright.text.architectures.protocol import GGUF_EXPERTS, GGUF_LAYER, Gguf
from genwright.text.architectures.rope_config import read_rope
from genwright.text.architectures.shape_rows import Row, configs
from genwright.text.architectures.weight_map import Source, Sources, WeightMap, vocabulary
from genwright.text.cache.layout import LayerCache, LayerSpec
from genwright.text.config import ModelConfig, Moe
from genwright.text.config_file import FieldReader
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Step

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def _gguf_llama(fields: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp calls the architectures of Mistral and Mixtral llama too."""
    window, experts = fields.get("attention.sliding_window"), fields.get("expert_count")
    if not window and not experts:
        return {}
    family = "mixtral" if experts else "mistral"
    counts = {"num_local_experts": experts, "num_experts_per_tok": fields.get("expert_used_count")} if experts else {}
    return {"architectures": [CLASSES[family]], "model_type": family, "sliding_window": window or None, **counts}


def _gguf_experts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen's; llama.cpp always normalises the weights of Qwen3's experts, and never those of Qwen2's."""
    shared = fields.get("expert_shared_feed_forward_length")
    return {
        "num_experts": fields.get("expert_count"),
        "num_experts_per_tok": fields.get("expert_used_count"),
        "moe_intermediate_size": fields.get("expert_feed_forward_length"),
        **({"norm_topk_prob": True} if shared is None else {"shared_expert_intermediate_size": shared}),
    }


_MIXTRAL_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_SHARED_NAMES = {f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
_QWEN2_MOE_NAMES = {**GGUF_LAYER, **GGUF_EXPERTS, **_SHARED_NAMES, "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
GGUF = {
    "llama": Gguf("llama", {**GGUF_LAYER, **_MIXTRAL_NAMES}, _gguf_llama, neighbours=True),
    "qwen2": Gguf("qwen2", GGUF_LAYER),
    "qwen3": Gguf("qwen3", GGUF_LAYER),
    "qwen2moe": Gguf("qwen2_moe", _QWEN2_MOE_NAMES, _gguf_experts),
    "qwen3moe": Gguf("qwen3_moe", {**GGUF_LAYER, **GGUF_EXPERTS}, _gguf_experts),
}


def embed(ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
    return ops.embedding(step.tokens, weights, "embed")


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]."""
    qkv = ops.norm_linear(x, weights, "attention_norm", "qkv", cfg.norm_eps)
    attended = ops.rope_attend(qkv, weights, cfg.attention[cache.layer], cache, step)
    x, attended = step.needed(cache.layer, x, attended)
    x = ops.add_linear(x, attended, weights, "out")
    if cfg.moe is not None and "router" in weights:
        return ops.add_moe(x, weights, "mlp_norm", cfg.norm_eps, cfg.moe)
    return ops.add_gated_mlp(x, weights, "mlp_norm", cfg.norm_eps)


def final_norm(ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """The hidden states [tokens, dim] that the head's matrix multiplies."""
    return ops.norm(x, weights, "norm", cfg.norm_eps)


def head(ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
    """Logits [rows, vocab] of `step.logit_rows`."""
    return ops.norm_linear(step.wanted(x), weights, "norm", "head", cfg.norm_eps)


def cache_layers(cfg: ModelConfig) -> list[LayerSpec]:
    row = (cfg.kv_heads, cfg.head_dim)
    return [LayerSpec({"k": row, "v": row}, window) for window in cfg.windows]


def weight_map(cfg: ModelConfig) -> WeightMap:
    d, heads = cfg.dim, cfg.head_dim
    qkv = (("q", cfg.q_dim), ("k", cfg.kv_dim), ("v", cfg.kv_dim))
    layer: dict[str, Sources] = {
        "attention_norm": [Source("input_layernorm.weight", (d,))],
        "qkv": [
            Source(f"self_attn.{name}_proj.weight", (rows, d), 0, heads, repeats=name != "q") for name, rows in qkv
        ],
        "out": [Source("self_attn.o_proj.weight", (d, cfg.q_dim), 1, heads)],
        "mlp_norm": [Source("post_attention_layernorm.weight", (d,))],
    }
    if cfg.qkv_bias:
        layer["qkv.bias"] = [
            Source(f"self_attn.{name}_proj.bias", (rows,), 0, heads, repeats=name != "q") for name, rows in qkv
        ]
    if cfg.out_bias:
        layer["out.bias"] = [Source("self_attn.o_proj.bias", (d,))]
    if cfg.qk_norm:
        layer |= {f"{name}_norm": [Source(f"self_attn.{name}_norm.weight", (heads,))] for name in ("q", "k")}
    dense, sparse = {**layer, **mlp_map(cfg)}, {**layer, **expert_map(cfg)}
    blocks = [sparse if cfg.has_experts(i) else dense for i in range(cfg.layers)]
    return WeightMap(outer_map(cfg), blocks, "model.layers.{}.", exact=ROUTER, unpacked=frozenset({"shared.gate"}))


def outer_map(cfg: ModelConfig) -> dict[str, Sources]:
    """Embedding, last norm and head, if it is not tied."""
    outer: dict[str, Sources] = {
        "embed": [vocabulary("model.embed_tokens.weight", cfg.vocab_size, cfg.dim)],
        "norm": [Source("model.norm.weight", (cfg.dim,))],
    }
    if not cfg.tied:
        outer["head"] = [vocabulary("lm_head.weight", cfg.vocab_size, cfg.dim)]
    return outer


GATED = ("gate_proj", "up_proj", "down_proj")
ROUTER = frozenset({"router", "router.correction"})  # in float32, because rounding could choose other experts


def mlp_map(cfg: ModelConfig) -> dict[str, Sources]:
    """A gated MLP, gate and up fused."""
    weights = gated(cfg.dim, cfg.ffn_dim, "mlp.")
    if cfg.mlp_bias:
        weights["gate_up.bias"] = [Source(f"mlp.{name}_proj.bias", (cfg.ffn_dim,), 0) for name in ("gate", "up")]
        weights["down.bias"] = [Source("mlp.down_proj.bias", (cfg.dim,))]
    return weights


def expert_map(cfg: ModelConfig) -> dict[str, Sources]:
    """A mixture of experts; each weight fuses those of all experts."""
    moe, d = cfg.moe, cfg.dim
    if moe is None:
        return {}
    prefix = "block_sparse_moe." if moe.mixtral_names else "mlp."
    names = ("w1", "w3", "w2") if moe.mixtral_names else GATED
    each = [gated(d, moe.ffn_dim, f"{prefix}experts.{expert}.", names, expert) for expert in range(moe.experts)]
    weights: dict[str, Sources] = {
        "router": [Source(f"{prefix}gate.weight", (moe.experts, d))],
        **{f"experts.{name}": [s for weights in each for s in weights[name]] for name in ("gate_up", "down")},
    }
    if moe.correction_bias:
        weights["router.correction"] = [Source(f"{prefix}gate.e_score_correction_bias", (moe.experts,))]
    if moe.shared_dim:
        shared = gated(d, moe.shared_dim, "mlp.shared_expert." if moe.shared_gate else "mlp.shared_experts.")
        weights |= {f"shared.{name}": sources for name, sources in shared.items()}
    if moe.shared_gate:
        weights["shared.gate"] = [Source("mlp.shared_expert_gate.weight", (1, d))]
    return weights


def gated(d: int, ffn: int, prefix: str, names: Sequence[str] = GATED, expert: int | None = None) -> dict[str, Sources]:
    """The two weights of a gated MLP; `names` are those of gate, up and down."""
    *first, down = names
    return {
        "gate_up": [Source(f"{prefix}{name}.weight", (ffn, d), 0, expert=expert) for name in first],
        "down": [Source(f"{prefix}{down}.weight", (d, ffn), 1, expert=expert)],
    }


def read_config(read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
    dim, heads, layers = sizes["dim"], sizes["heads"], sizes["layers"]
    head_dim, kv_heads = read_heads(read, dim, heads)
    check_silu(read)
    qwen2 = family in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM")
    attention_bias = read.flag("attention_bias", False)
    return ModelConfig(
        architecture="llama",
        **sizes,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=read_rope(read, head_dim),
        tied=read.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or (qwen2 and read.flag("qkv_bias", True)),
        out_bias=attention_bias and not qwen2,
        mlp_bias=read.flag("mlp_bias", False),
        qk_norm=family in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        windows=_read_windows(read, family, layers),
        moe=_read_experts(read, family, layers),
    )


def _read_experts(read: FieldReader, family: str, layers: int) -> Moe | None:
    """Mixtral's and Qwen's mixtures of experts: softmax scores, no groups."""
    if family not in ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"):
        return None
    mixtral, qwen2 = family == "MixtralForCausalLM", family == "Qwen2MoeForCausalLM"
    key, other = ("num_local_experts", "num_experts") if mixtral else ("num_experts", "num_local_experts")
    experts = read.integer(other if read.config.get(key) is None and other in read.config else key, 1, 4096)
    every = read.integer("decoder_sparse_step", 1, 4096, default=1)
    dense = read.ids("mlp_only_layers")
    return Moe(
        layers=tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(layers)),
        experts=experts,
        top_k=read.integer("num_experts_per_tok", 1, experts),
        ffn_dim=read.integer("intermediate_size" if mixtral else "moe_intermediate_size", 1, 1 << 22),
        shared_dim=read.integer("shared_expert_intermediate_size", 1, 1 << 22) if qwen2 else 0,
        shared_gate=qwen2,
        normalise=mixtral or read.flag("norm_topk_prob", False),
        mixtral_names=mixtral,
    )


def _read_windows(read: FieldReader, family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral and Mixtral have windows in all layers, Qwen in those of its class if `use_sliding_window` is set."""
    always = family in ("MistralForCausalLM", "MixtralForCausalLM")
    sliding = always or read.flag("use_sliding_window", False)
    if family == "LlamaForCausalLM" or not sliding or read.config.get("sliding_window") is None:
        return (None,) * layers
    window = read.integer("sliding_window", 1, 1 << 30)
    kinds = read.config.get("layer_types")
    if kinds is not None:
        return read_layer_types(read, window, kinds, layers)
    if always or family == "Qwen3MoeForCausalLM":
        return (window,) * layers
    bound = read.integer("max_window_layers", 0, 4096, default=0)
    if family == "Qwen2MoeForCausalLM":
        return tuple(window if layer % 2 == 0 and layer < bound else None for layer in range(layers))
    return tuple(window if layer >= bound else None for layer in range(layers))


_LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
_MISTRAL = {**_LLAMA, "model_type": "mistral"}
_QWEN2 = {**_LLAMA, "model_type": "qwen2", "rms_norm_eps": 1e-6}
_QWEN3 = {**_QWEN2, "model_type": "qwen3", "head_dim": 128}
_MIXTRAL = {**_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN2_MOE = {**_QWEN2, "model_type": "qwen2_moe"}
_QWEN3_MOE = {**_QWEN3, "model_type": "qwen3_moe", "norm_topk_prob": True}
_ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ROPE |= {"original_max_position_embeddings": 8192}
_LLAMA31 = {**_LLAMA, "rope_scaling": {**_ROPE, "factor": 8.0}}
_LLAMA32 = {**_LLAMA, "rope_scaling": {**_ROPE, "factor": 32.0}, "tie_word_embeddings": True}


def _experts(count: int, top_k: int, ffn_dim: int, shared_dim: int | None = None) -> dict[str, Any]:
    fields = {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": ffn_dim}
    return fields if shared_dim is None else {**fields, "shared_expert_intermediate_size": shared_dim}


_ROWS: dict[str, Row] = {
    "llama-7b": (_LLAMA, 4096, 32, 32, 32, 11008, 32000, 2048, 1e4, {"rms_norm_eps": 1e-6}),
    "llama-13b": (_LLAMA, 5120, 40, 40, 40, 13824, 32000, 2048, 1e4, {"rms_norm_eps": 1e-6}),
    "llama-30b": (_LLAMA, 6656, 60, 52, 52, 17920, 32000, 2048, 1e4, {"rms_norm_eps": 1e-6}),
    "llama-65b": (_LLAMA, 8192, 80, 64, 64, 22016, 32000, 2048, 1e4, {}),
    "llama-2-7b": (_LLAMA, 4096, 32, 32, 32, 11008, 32000, 4096, 1e4, {}),
    "llama-2-13b": (_LLAMA, 5120, 40, 40, 40, 13824, 32000, 4096, 1e4, {}),
    "llama-2-70b": (_LLAMA, 8192, 80, 64, 8, 28672, 32000, 4096, 1e4, {}),
    "codellama-7b-python": (_LLAMA, 4096, 32, 32, 32, 11008, 32000, 16384, 1e6, {}),
    "codellama-34b-python": (_LLAMA, 8192, 48, 64, 8, 22016, 32000, 16384, 1e6, {}),
    "llama-3-8b": (_LLAMA, 4096, 32, 32, 8, 14336, 128256, 8192, 5e5, {}),
    "llama-3-70b": (_LLAMA, 8192, 80, 64, 8, 28672, 128256, 8192, 5e5, {}),
    "llama-3.1-8b": (_LLAMA31, 4096, 32, 32, 8, 14336, 128256, 131072, 5e5, {}),
    "llama-3.1-70b": (_LLAMA31, 8192, 80, 64, 8, 28672, 128256, 131072, 5e5, {}),
    "llama-3.1-405b": (_LLAMA31, 16384, 126, 128, 8, 53248, 128256, 131072, 5e5, {}),
    "llama-3.2-1b": (_LLAMA32, 2048, 16, 32, 8, 8192, 128256, 131072, 5e5, {}),
    "llama-3.2-3b": (_LLAMA32, 3072, 28, 24, 8, 8192, 128256, 131072, 5e5, {}),
    "mistral-7b": (_MISTRAL, 4096, 32, 32, 8, 14336, 32000, 32768, 1e4, {"sliding_window": 4096}),
    "qwen2.5-0.5b": (_QWEN2, 896, 24, 14, 2, 4864, 151936, 32768, 1e6, {"tie_word_embeddings": True}),
    "qwen2.5-7b": (_QWEN2, 3584, 28, 28, 4, 18944, 152064, 32768, 1e6, {}),
    "qwen3-0.6b": (_QWEN3, 1024, 28, 16, 8, 3072, 151936, 40960, 1e6, {"tie_word_embeddings": True}),
    "qwen3-8b": (_QWEN3, 4096, 36, 32, 8, 12288, 151936, 40960, 1e6, {}),
    "smollm2-135m": (_LLAMA, 576, 30, 9, 3, 1536, 49152, 8192, 1e5, {"tie_word_embeddings": True}),
    "tinyllama-1.1b": (_LLAMA, 2048, 22, 32, 4, 5632, 32000, 2048, 1e4, {}),
    "mixtral-8x7b": (_MIXTRAL, 4096, 32, 32, 8, 14336, 32000, 32768, 1e6, {}),
    "mixtral-8x22b": (_MIXTRAL, 6144, 56, 48, 8, 16384, 32000, 65536, 1e6, {}),
    "qwen1.5-moe-a2.7b": (_QWEN2_MOE, 2048, 24, 16, 16, 5632, 151936, 8192, 1e6, _experts(60, 4, 1408, 5632)),
    "qwen2-57b-a14b": (_QWEN2_MOE, 3584, 28, 28, 4, 18944, 151936, 32768, 1e6, _experts(64, 8, 2560, 20480)),
    "qwen3-30b-a3b": (_QWEN3_MOE, 2048, 48, 32, 4, 6144, 151936, 40960, 1e6, _experts(128, 8, 768)),
    "qwen3-235b-a22b": (_QWEN3_MOE, 4096, 94, 64, 4, 12288, 151936, 40960, 1e6, _experts(128, 8, 1536)),
    "stories15m": (_LLAMA, 288, 6, 6, 6, 768, 32000, 256, 1e4, {}),
    "stories110m": (_LLAMA, 768, 12, 12, 12, 2048, 32000, 1024, 1e4, {}),
}
SHAPES = configs(_ROWS)
# gpt-fast's names, and other common names.
ALIASES = {
    "7b": "llama-2-7b",
    "13b": "llama-2-13b",
    "30b": "llama-30b",
    "34b": "codellama-34b-python",
    "70b": "llama-2-70b",
    "codellama-7b-python-hf": "codellama-7b-python",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "qwen2-moe": "qwen1.5-moe-a2.7b",
    "qwen3-moe": "qwen3-30b-a3b",
}
