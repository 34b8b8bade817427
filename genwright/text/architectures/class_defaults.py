"""The values that transformers' configuration classes give to fields which a config.json omits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genwright.text.architectures.registry import MODEL_TYPES, family_of
from genwright.text.config_file import read_json

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def _class(*sizes: int, **further: object) -> dict[str, Any]:
    return {**dict(zip(_SIZES, sizes, strict=True)), **further}


_WINDOW = {"max_position_embeddings": 32768, "sliding_window": 4096}
_QWEN = {**_WINDOW, "num_key_value_heads": 32, "max_window_layers": 28}
_MISTRAL = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
_MIXTRAL = {**_MISTRAL, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2}
_MLA = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_V3_GROUPS = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3}


# By `model_type`, without the fields whose defaults our readers have too.
_DEFAULTS = {
    "llama": _class(4096, 11008, 32, 32, 32000),
    "mistral": _class(4096, 14336, 32, 32, 32000, **_MISTRAL, sliding_window=4096),
    "mixtral": _class(4096, 14336, 32, 32, 32000, **_MIXTRAL),
    "qwen2": _class(4096, 22016, 32, 32, 151936, **_QWEN),
    "qwen3": _class(4096, 22016, 32, 32, 151936, **_QWEN, head_dim=128),
    "qwen2_moe": {
        **_class(2048, 5632, 24, 16, 151936, **{**_QWEN, "num_key_value_heads": 16}),
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3_moe": {
        **_class(2048, 6144, 24, 32, 151936, **_WINDOW, num_key_value_heads=4),
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek_v2": {
        **_class(4096, 11008, 32, 32, 102400, **_MLA),
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
    },
    "deepseek_v3": {
        **_class(7168, 18432, 61, 128, 129280, **_MLA, **_V3_GROUPS, max_position_embeddings=4096),
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
    },
    "gemma3_text": {
        **_class(2304, 9216, 26, 8, 262208, num_key_value_heads=4, head_dim=256),
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131072,
    },
    "opt": {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    | {"vocab_size": 50272},
}
_TYPES = {name: kind for kind, name in MODEL_TYPES.items()}
_SAME = ({"num_experts", "num_local_experts"},)  # names of one field


def read_config_json(path: Path) -> dict[str, Any]:
    """A config.json, complete."""
    return with_defaults(read_json(path))


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the fields that it omits; a field that is null stays null."""
    given = set(config).union(*(names for names in _SAME if names & config.keys()))
    family = family_of(config)
    omitted = {} if family is None else _DEFAULTS[_TYPES[family]]
    return {**config, **{key: value for key, value in omitted.items() if key not in given}}
