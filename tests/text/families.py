"""Tiny random models of every family, made by transformers, which the tests compare with."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
import transformers

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,  # far from the tiny default, so that attention is sharp and tokens differ
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
_PLAIN_OPT = {"ffn_dim": 96, "enable_bias": False, "layer_norm_elementwise_affine": False}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DEEPSEEK = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
_DEEPSEEK_YARN = {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.9, "beta_fast": 32, "beta_slow": 1}

_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
}
_GEMMA3 = {"num_hidden_layers": 7, "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 30}
_GEMMA3 |= {"rope_parameters": _GEMMA3_ROPE, "initializer_range": 0.1}

FAMILIES = {
    "llama": ("Llama", {}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("Llama", {"rope_parameters": _LINEAR}),
    "codellama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "llama-3.2": ("Llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", _GEMMA3),
    "gemma3-linear": ("Gemma3", {**_GEMMA3, "rope_parameters": {**_GEMMA3_ROPE, "full_attention": _LINEAR}}),
    "opt": ("OPT", {"ffn_dim": 96}),
    "opt-350m": ("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 40, "do_layer_norm_before": False}),
    "galactica": ("OPT", {**_PLAIN_OPT, "activation_function": "gelu"}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2-moe": ("Qwen2Moe", {**_EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 40}),
    "qwen2-moe-window": (
        "Qwen2Moe",
        {**_EXPERTS, "num_experts": 6, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {**_EXPERTS, "num_experts": 6, "norm_topk_prob": True, "mlp_only_layers": [1], "head_dim": 24},
    ),
    "deepseek-v2-lite": ("DeepseekV2", {**_DEEPSEEK, "q_lora_rank": None, "rope_parameters": _DEEPSEEK_YARN}),
    "deepseek-v2": ("DeepseekV2", {**_DEEPSEEK, "topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}),
    "deepseek-v3": ("DeepseekV3", {**_DEEPSEEK, "num_experts_per_tok": 3, "rope_parameters": _DEEPSEEK_YARN}),
}
# Not compared with transformers by itself: a V3 whose matrices are whole FP8 blocks.
_BLOCKS = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 256, "vocab_size": 256}
_BLOCKS |= {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 128}
_BLOCKS |= {"v_head_dim": 128, "num_experts_per_tok": 3, "rope_parameters": _DEEPSEEK_YARN | {"mscale": 0.9}}
_BLOCKS |= {"initializer_range": 0.1, "rms_norm_eps": 1e-6}
OTHERS = {"deepseek-v3-blocks": ("DeepseekV3", {**_DEEPSEEK, **_BLOCKS})}
# Compared with transformers at several lengths, on which the frequencies depend.
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128}
_LONGROPE |= {"short_factor": [1 + 0.1 * i for i in range(8)], "long_factor": [1.5 + i for i in range(8)]}
_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "factor": 2.0}
SCALED = {
    "yarn, not truncated": ("Llama", {"rope_parameters": {**_YARN, "truncate": False}}),
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}}),
    "longrope": ("Qwen2", {"rope_parameters": _LONGROPE}),
    "longrope, with factors": ("Llama", {"rope_parameters": {**_LONGROPE, "factor": 8.0, "attention_factor": 1.3}}),
    "proportional": ("Llama", {"rope_parameters": _PROPORTIONAL}),
}


def config_class(kind: str) -> type[transformers.PreTrainedConfig]:
    kind = "Gemma3Text" if kind == "Gemma3" else kind
    found: type[transformers.PreTrainedConfig] = getattr(transformers, f"{kind}Config")
    return found


def make(
    family: str, folder: Path, sizes: Mapping[str, object] = MappingProxyType({}), **save: object
) -> transformers.PreTrainedModel:
    """A model of the family, in float32, saved to the folder; `sizes` replace the family's."""
    kind, changes = {**FAMILIES, **OTHERS, **SCALED}[family]
    torch.manual_seed(sum(map(ord, family)))
    config = getattr(transformers, f"{kind}{'Text' * (kind == 'Gemma3')}Config")(**{**SIZES, **changes, **sizes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("norm.weight", "bias")):
                tensor.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **save)
    return model


@torch.no_grad()
def greedy(model: transformers.PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy continuation, never ending early."""
    out = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def reference_logits(model: transformers.PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    return model(torch.tensor([prompt])).logits[0]
