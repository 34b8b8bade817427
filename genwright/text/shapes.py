"""Named shapes: published models as configurations, for random weights and checkpoints that have none."""

from typing import Any

from genwright.errors import UserError

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
_MISTRAL = {**_LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_QWEN2 = {**_LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
_QWEN3 = {**_QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA32_ROPE = {**_LLAMA31_ROPE, "factor": 32.0}

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
    "stories15m": (_LLAMA, 288, 6, 6, 6, 768, 32000, 256, 1e4, {}),
    "stories110m": (_LLAMA, 768, 12, 12, 12, 2048, 32000, 1024, 1e4, {}),
}
_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta"),
)

# gpt-fast's names.
ALIASES = {
    "7b": "llama-2-7b",
    "13b": "llama-2-13b",
    "30b": "llama-30b",
    "34b": "codellama-34b-python",
    "70b": "llama-2-70b",
    "codellama-7b-python-hf": "codellama-7b-python",
}
NAMES = tuple(_ROWS)


def named_shape(name: str) -> dict[str, Any]:
    """The Hugging Face configuration of a published model, by our name or gpt-fast's, in any letter case."""
    known = ALIASES.get(name.lower(), name.lower())
    if known not in _ROWS:
        raise UserError(f"there is no model shape named {name!r}; known are {', '.join(NAMES)}.")
    family, *sizes, more = _ROWS[known]
    return {**family, **dict(zip(_FIELDS, sizes, strict=True)), **more}
