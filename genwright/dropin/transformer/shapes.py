"""The shapes that gpt-fast and PyTorch's benchmark know by name."""

from typing import Any

Shape = dict[str, Any]

_8B: Shape = {"n_layer": 32, "n_head": 32, "dim": 4096, "intermediate_size": 14336}
_70B: Shape = {"n_layer": 80, "n_head": 64, "dim": 8192, "intermediate_size": 28672}
_34B: Shape = {"n_layer": 48, "n_head": 64, "dim": 8192, "intermediate_size": 22016, "rope_base": 1000000}
_LLAMA_3: Shape = {"n_local_heads": 8, "vocab_size": 128256, "rope_base": 500000, "block_size": 8192}
_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA_31: Shape = {**_LLAMA_3, "block_size": 131072, "rope_scaling": _SCALING}
_EXPERTS: Shape = {"n_local_heads": 8, "num_experts": 8, "num_activated_experts": 2}

LLAMA_2: dict[str, Shape] = {
    "CodeLlama-7b-Python-hf": {"block_size": 16384, "n_layer": 32, "dim": 4096, "rope_base": 1000000},
    "7B": {"n_layer": 32, "n_head": 32, "dim": 4096},
    "13B": {"n_layer": 40, "n_head": 40, "dim": 5120},
    "30B": {"n_layer": 60, "n_head": 52, "dim": 6656},
    "34B": {**_34B, "n_local_heads": 8},
    "70B": {**_70B, "n_local_heads": 8},
    "Mistral-7B": {**_8B, "n_local_heads": 8},
}
LLAMA_3: dict[str, Shape] = {
    "llama-3-8b": {**_8B, **_LLAMA_3},
    "llama-3-70b": {**_70B, **_LLAMA_3},
    "llama-3.1-8b": {**_8B, **_LLAMA_31},
    "llama-3.1-70b": {**_70B, **_LLAMA_31},
    "llama-3.1-405b": {**_LLAMA_31, "n_layer": 126, "n_head": 128, "dim": 16384, "intermediate_size": 53248},
}
STORIES: dict[str, Shape] = {
    "stories15M": {"n_layer": 6, "n_head": 6, "dim": 288},
    "stories110M": {"n_layer": 12, "n_head": 12, "dim": 768},
}
MIXTRAL: dict[str, Shape] = {"Mixtral-8x7B-v0.1": {**_8B, **_EXPERTS, "block_size": 32768, "rope_base": 1000000.0}}
