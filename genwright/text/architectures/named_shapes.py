"""Named shapes: published models as configurations, for random weights and checkpoints that have none."""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from genwright.errors import UserError

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
_MISTRAL = {**_LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_QWEN2 = {**_LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
_QWEN3 = {**_QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
_MIXTRAL = {**_LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
_MIXTRAL |= {"num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN2_MOE = {**_QWEN2, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
_QWEN3_MOE = {**_QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
_QWEN3_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
_DEEPSEEK = {"rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "n_shared_experts": 2, "num_experts_per_tok": 6}
_DEEPSEEK |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_DEEPSEEK2 = {**_DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
_DEEPSEEK3 = {**_DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
_OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16", "eos_token_id": 2}
_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA32_ROPE = {**_LLAMA31_ROPE, "factor": 32.0}


def _experts(count: int, top_k: int, ffn_dim: int) -> dict[str, Any]:
    return {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": ffn_dim}


def _yarn(mscale: float) -> dict[str, Any]:
    """DeepSeek's scaling of RoPE, from 4,096 positions to 163,840."""
    settings = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    return {"rope_scaling": {**settings, "beta_fast": 32, "beta_slow": 1, "mscale": mscale, "mscale_all_dim": mscale}}


# name: family, dim, layers, heads, key-value heads, FFN dim, vocabulary, context, RoPE theta, what else differs
_ROWS: dict[str, tuple[Any, ...]] = {
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
    "llama-3.1-8b": (_LLAMA, 4096, 32, 32, 8, 14336, 128256, 131072, 5e5, {"rope_scaling": _LLAMA31_ROPE}),
    "llama-3.1-70b": (_LLAMA, 8192, 80, 64, 8, 28672, 128256, 131072, 5e5, {"rope_scaling": _LLAMA31_ROPE}),
    "llama-3.1-405b": (_LLAMA, 16384, 126, 128, 8, 53248, 128256, 131072, 5e5, {"rope_scaling": _LLAMA31_ROPE}),
    "llama-3.2-1b": (
        *(_LLAMA, 2048, 16, 32, 8, 8192, 128256, 131072, 5e5),
        {"rope_scaling": _LLAMA32_ROPE, "tie_word_embeddings": True},
    ),
    "llama-3.2-3b": (
        *(_LLAMA, 3072, 28, 24, 8, 8192, 128256, 131072, 5e5),
        {"rope_scaling": _LLAMA32_ROPE, "tie_word_embeddings": True},
    ),
    "mistral-7b": (_MISTRAL, 4096, 32, 32, 8, 14336, 32000, 32768, 1e4, {"sliding_window": 4096}),
    "qwen2.5-0.5b": (_QWEN2, 896, 24, 14, 2, 4864, 151936, 32768, 1e6, {"tie_word_embeddings": True}),
    "qwen2.5-7b": (_QWEN2, 3584, 28, 28, 4, 18944, 152064, 32768, 1e6, {}),
    "qwen3-0.6b": (_QWEN3, 1024, 28, 16, 8, 3072, 151936, 40960, 1e6, {"tie_word_embeddings": True}),
    "qwen3-8b": (_QWEN3, 4096, 36, 32, 8, 12288, 151936, 40960, 1e6, {}),
    "smollm2-135m": (_LLAMA, 576, 30, 9, 3, 1536, 49152, 8192, 1e5, {"tie_word_embeddings": True}),
    "tinyllama-1.1b": (_LLAMA, 2048, 22, 32, 4, 5632, 32000, 2048, 1e4, {}),
    "mixtral-8x7b": (_MIXTRAL, 4096, 32, 32, 8, 14336, 32000, 32768, 1e6, {}),
    "mixtral-8x22b": (_MIXTRAL, 6144, 56, 48, 8, 16384, 32000, 65536, 1e6, {}),
    "qwen1.5-moe-a2.7b": (
        *(_QWEN2_MOE, 2048, 24, 16, 16, 5632, 151936, 8192, 1e6),
        _experts(60, 4, 1408) | {"shared_expert_intermediate_size": 5632},
    ),
    "qwen2-57b-a14b": (
        *(_QWEN2_MOE, 3584, 28, 28, 4, 18944, 151936, 32768, 1e6),
        _experts(64, 8, 2560) | {"shared_expert_intermediate_size": 20480},
    ),
    "qwen3-30b-a3b": (_QWEN3_MOE, 2048, 48, 32, 4, 6144, 151936, 40960, 1e6, {"moe_intermediate_size": 768}),
    "qwen3-235b-a22b": (_QWEN3_MOE, 4096, 94, 64, 4, 12288, 151936, 40960, 1e6, {"moe_intermediate_size": 1536}),
    "deepseek-v2-lite": (
        *(_DEEPSEEK2, 2048, 27, 16, 16, 10944, 102400, 163840, 1e4),
        _yarn(0.707) | {"n_routed_experts": 64, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
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
    "stories15m": (_LLAMA, 288, 6, 6, 6, 768, 32000, 256, 1e4, {}),
    "stories110m": (_LLAMA, 768, 12, 12, 12, 2048, 32000, 1024, 1e4, {}),
}
_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta"),
)

# name: dim, layers, heads, what else differs
_OPT_ROWS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "opt-125m": (768, 12, 12, {}),
    "opt-350m": (1024, 24, 16, {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    "opt-1.3b": (2048, 24, 32, {}),
    "opt-2.7b": (2560, 32, 32, {}),
    "opt-6.7b": (4096, 32, 32, {}),
    "opt-13b": (5120, 40, 40, {}),
    "opt-30b": (7168, 48, 56, {}),
    "opt-66b": (9216, 64, 72, {}),
    "opt-175b": (12288, 96, 96, {}),
    "galactica-30b": (7168, 48, 56, {"vocab_size": 50000, "activation_function": "gelu"}),
}
_OPT_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads")

# gpt-fast's names, instruction-tuned models of the same shape, and the common names of some.
ALIASES = {
    "7b": "llama-2-7b",
    "13b": "llama-2-13b",
    "30b": "llama-30b",
    "34b": "codellama-34b-python",
    "70b": "llama-2-70b",
    "codellama-7b-python-hf": "codellama-7b-python",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    **{f"opt-iml-{size}": f"opt-{size.removeprefix('max-')}" for size in ("1.3b", "30b", "max-1.3b", "max-30b")},
    "qwen2-moe": "qwen1.5-moe-a2.7b",
    "qwen3-moe": "qwen3-30b-a3b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
}
NAMES = (*_ROWS, *_OPT_ROWS)


def named_shape(name: str) -> dict[str, Any]:
    """The Hugging Face configuration of a published model, by our name or gpt-fast's, in any letter case."""
    known = ALIASES.get(name.lower(), name.lower())
    if known in _OPT_ROWS:
        *opt, more = _OPT_ROWS[known]
        named = dict(zip(_OPT_FIELDS, opt, strict=True))
        sizes = {"ffn_dim": 4 * opt[0], "vocab_size": 50272, "max_position_embeddings": 2048}
        return {**_OPT, **named, **sizes, **more}
    if known not in _ROWS:
        close = get_close_matches(known, (*NAMES, *ALIASES), 1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(NAMES)}."
        raise UserError(f"There is no model shape named {name!r}; {hint}")
    family, *rest, more = _ROWS[known]
    return {**family, **dict(zip(_FIELDS, rest, strict=True)), **more}


def find_shape(path: Path, arch: str | None, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The configuration of a checkpoint that has none: by the name given, else the one named shape that fits."""
    if arch is not None:
        return named_shape(arch)
    fitting = [name for name in NAMES if fits(named_shape(name))]
    if not fitting:
        raise UserError(f"{path} fits none of the known shapes; put its config.json beside it, or name one with arch.")
    if len(fitting) > 1:
        # The most specific name that a folder of the path carries.
        spellings = {**ALIASES, **dict(zip(fitting, fitting, strict=True))}
        folders = [part.lower() for part in (path if path.is_dir() else path.parent).resolve().parts]
        chosen = [n for n in sorted(spellings, key=len) if spellings[n] in fitting and any(n in f for f in folders)]
        if not chosen:
            raise UserError(f"{path} fits {', '.join(fitting)}; choose with arch (--arch NAME).")
        fitting = [spellings[chosen[-1]]]
        print(f"{path}: taken to be {fitting[0]}, by its folder's name.", file=sys.stderr)
    return named_shape(fitting[0])
