"""The metadata of a GGUF file, from a checkpoint's configuration and tokenizer."""

from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.checkpoints.gguf import CONFIG, GGUF, SAMPLING, YARN, YARN_MSCALE
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.config import ModelConfig, Rope
from genwright.text.ops.rope import frequencies
from genwright.text.tokenizer.gguf_metadata import gguf_metadata

QUANTIZATION_VERSION = 2
FACTORED = ("llama3", "factors")  # kinds of RoPE scaling whose divisors are a tensor


def gguf_architecture(checkpoint: Checkpoint) -> str:
    """llama.cpp's name of the architecture."""
    cfg = checkpoint.config
    if cfg.architecture == "deepseek":
        return "deepseek2"
    if cfg.architecture == "gemma3":
        return "gemma3"
    if cfg.architecture != "llama":
        raise UserError(f"{checkpoint.path} is a model of the architecture {cfg.architecture}, which GGUF cannot hold.")
    if cfg.moe is not None and not cfg.moe.mixtral_names:
        return "qwen2moe" if cfg.moe.shared_gate else "qwen3moe"
    if cfg.qk_norm:
        return "qwen3"
    return "qwen2" if cfg.qkv_bias and not cfg.out_bias else "llama"


def file_metadata(checkpoint: Checkpoint, arch: str, file_type: int) -> dict[str, Any]:
    cfg = checkpoint.config
    general = {"architecture": arch, "type": "model", "name": Path(checkpoint.path).stem, "file_type": file_type}
    general["quantization_version"] = QUANTIZATION_VERSION
    fields = {**_sizes(cfg), **_experts(cfg), **_rope(checkpoint)}
    return {
        **{f"general.{key}": value for key, value in general.items()},
        **{f"{arch}.{key}": value for key, value in fields.items()},
        **_sampling(checkpoint),
        **_tokenizer(checkpoint),
    }


def _sizes(cfg: ModelConfig) -> dict[str, Any]:
    values = (cfg.dim, cfg.layers, cfg.heads, cfg.ffn_dim, cfg.max_context, cfg.norm_eps)
    fields: dict[str, Any] = dict(zip(CONFIG.values(), values, strict=True))
    fields |= {"vocab_size": cfg.vocab_size, "attention.head_count_kv": cfg.kv_heads}
    fields |= {"attention.key_length": cfg.head_dim, "attention.value_length": cfg.head_dim}
    if cfg.mla is not None:
        fields |= {"attention.value_length": cfg.mla.v_head_dim, "attention.kv_lora_rank": cfg.mla.kv_lora_rank}
        fields |= {"attention.q_lora_rank": cfg.mla.q_lora_rank} if cfg.mla.q_lora_rank else {}
    window = next((window for window in cfg.windows if window is not None), None)
    return fields if window is None else {**fields, "attention.sliding_window": window}


def _experts(cfg: ModelConfig) -> dict[str, Any]:
    moe = cfg.moe
    if moe is None:
        return {}
    fields: dict[str, Any] = {"expert_count": moe.experts, "expert_used_count": moe.top_k}
    if not moe.mixtral_names:
        fields["expert_feed_forward_length"] = moe.ffn_dim
    if moe.shared_gate:
        fields["expert_shared_feed_forward_length"] = moe.shared_dim
    if cfg.mla is not None:
        fields |= {"leading_dense_block_count": (*moe.layers, True).index(True)}
        fields |= {"expert_shared_count": moe.shared_dim // moe.ffn_dim, "expert_weights_scale": moe.scale}
        fields |= {"expert_weights_norm": moe.normalise, "expert_gating_func": 2 if moe.scores == "sigmoid" else 1}
        if moe.groups > 1:
            fields |= {"expert_group_count": moe.groups, "expert_group_used_count": moe.top_groups}
    return fields


def _rope(checkpoint: Checkpoint) -> dict[str, Any]:
    cfg = checkpoint.config
    rope, settings = cfg.rope, cfg.rope.settings
    fields: dict[str, Any] = {"rope.freq_base": rope.theta, "rope.dimension_count": cfg.rope_dim}
    if rope.kind in ("default", *FACTORED):
        return fields
    if rope.kind not in ("linear", "yarn"):
        raise UserError(f"{checkpoint.path} cannot be written as GGUF, because its RoPE scaling is {rope.kind}.")
    fields |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": settings["factor"]}
    fields |= {theirs: settings[ours] for ours, theirs in YARN.items() if ours in settings}
    original = YARN["original_max_position_embeddings"]
    if original in fields:
        fields[original] = int(fields[original])
    if cfg.mla is not None and "mscale_all_dim" in settings:
        if settings.get("mscale") != settings["mscale_all_dim"]:
            raise UserError(f"{checkpoint.path} cannot be written as GGUF, because its two YaRN mscales differ.")
        fields[YARN_MSCALE] = 0.1 * settings["mscale_all_dim"]
    return fields


def rope_factors(cfg: ModelConfig) -> list[torch.Tensor]:
    """The tensor of divisors of the RoPE frequencies, float32 [rope_dim / 2], if the scaling needs it."""
    if cfg.rope.kind not in FACTORED:
        return []
    plain, scaled = (frequencies(rope, cfg.rope_dim)[0] for rope in (Rope(cfg.rope.theta), cfg.rope))
    return [(plain / scaled).float()]


def _sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    given = checkpoint.generation_config().config
    if not given.get("do_sample"):
        return {}
    kept = {theirs: given[ours] for ours, theirs in SAMPLING.items() if isinstance(given.get(ours), int | float)}
    return {key: int(value) if key.endswith("top_k") else float(value) for key, value in kept.items()}


def _tokenizer(checkpoint: Checkpoint) -> dict[str, Any]:
    """Those of a GGUF file are kept as they are."""
    if isinstance(checkpoint, GGUF):
        return {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.")}
    tokenizer, ends = checkpoint.tokenizer(), list(checkpoint.config.eos_ids)
    metadata: dict[str, Any] = {"tokenizer.ggml.model": "none"}
    if tokenizer is not None:
        metadata = gguf_metadata(tokenizer, checkpoint.config.vocab_size)
        ends += [i for i in tokenizer.eos_ids if i not in ends]
    return metadata | {f"tokenizer.ggml.{key}_token_id": i for key, i in zip(("eos", "eot", "eom"), ends, strict=False)}
