"""Tiny random models of transformers, and the GGUF files that llama.cpp's converter would make of them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4, 2, 16, 40
TOKENS = ["<unk>", "<s>", "</s>", "<|eot_id|>", "é", "▁a"] + [f"t{i}" for i in range(VOCAB - 6)]
TOKEN_TYPES = [2, 3, 3, 3] + [1] * (VOCAB - 4)


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    settings = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "rms_norm_eps": 2.0**-20,
        "max_position_embeddings": 128,
        "eos_token_id": [2, 3],
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**settings, **changes}))
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # transformers begins with zeros and ones
            torch.nn.init.normal_(parameter)
    return model


def permute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of a head's rows: first of one half, first of the other, second of the one, ..."""
    rows = weight.unflatten(0, (heads, 2, -1))
    return torch.stack((rows[:, 0], rows[:, 1]), dim=2).flatten(0, 2)


def add_sizes(writer: Any, config: Any) -> None:
    """What every architecture has."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def write_gguf(
    path: Path, model: PreTrainedModel, kind: str = "F32", extra: dict[str, torch.Tensor] | None = None, **metadata: Any
) -> Path:
    """`kind` is the type of the matrices; `metadata` adds integers, floats and strings, with "__" for a dot."""
    import gguf  # which a GPU machine may lack; the module is imported there

    config = model.config
    family = config.model_type
    arch = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, arch)
    add_sizes(writer, config)
    if family == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    elif family != "qwen2":
        writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(index) for index in range(VOCAB)])
    writer.add_token_types(TOKEN_TYPES)
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key.replace("__", "."), value)
    architecture = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[
        arch
    ]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = permute(tensor, HEADS if "q_proj" in name else KV_HEADS)
        stored = gguf.GGMLQuantizationType[kind if tensor.dim() > 1 else "F32"]
        writer.add_tensor(
            names.get_name(name, try_suffixes=(".weight", ".bias")),
            gguf.quants.quantize(tensor.numpy(), stored),
            raw_dtype=stored,
        )
    if factors := getattr(config, "rope_factors", None):
        writer.add_tensor("rope_freqs.weight", torch.tensor(factors).numpy())
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
