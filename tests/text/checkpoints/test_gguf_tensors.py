"""GGUF files of mixtures of experts and of DeepSeek, written by the gguf package as llama.cpp's converter does."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from quant.random_blocks import SCALES, random_rows
from safetensors.torch import load_file, save_file
from text.checkpoints.tiny_gguf import add_sizes, permute
from text.families import make, reference_logits
from transformers import PreTrainedModel

from genwright import LLM
from genwright.errors import UserError
from genwright.kernels.cpu.tile_packing import kernel
from genwright.quant.ggml import TYPES
from genwright.quant.packed import Packed
from genwright.quant.tiles import Tiles
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.gguf import GGUF

PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
YARN |= {"mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1}  # files have one mscale
EXPERTS = {"moe_intermediate_size": 32}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}  # for types of 256 elements
# Our family, llama.cpp's architecture, and other sizes; all widths are multiples of 32, for Q8_0.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("llama", {}),
    "qwen2-moe": ("qwen2moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3-moe": ("qwen3moe", {**EXPERTS, "mlp_only_layers": [], "head_dim": 32}),
    "deepseek-v2-lite": ("deepseek2", {**EXPERTS, "rope_parameters": YARN, "kv_lora_rank": 32, "v_head_dim": 8}),
    "deepseek-v2": ("deepseek2", {**EXPERTS, "kv_lora_rank": 32, "v_head_dim": 8}),
    "deepseek-v3": ("deepseek2", {**EXPERTS, "rope_parameters": YARN, "kv_lora_rank": 32, "v_head_dim": 8}),
}


def write_mixture(
    family: str, root: Path, kind: str = "F32", split_latent: bool = True, k_experts: bool = False
) -> tuple[Path, PreTrainedModel]:
    """`split_latent`: DeepSeek's kv_b_proj as two tensors, as in files since April 2025.

    `k_experts`: random experts in the types of a Q4_K_M file, whose rows are multiples of 256.
    """
    arch, sizes = MODELS[family]
    model = make(family, root / "hf", {**sizes, **(WIDE if k_experts else {})})
    tensors, config = load_file(root / "hf" / "model.safetensors"), model.config
    writer = gguf.GGUFWriter(root / "model.gguf", arch)
    add_settings(writer, arch, config, family, split_latent)
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
        if found := re.fullmatch(r"(.+experts)\.\d+\.(\w+)\.weight", name):
            stacks.setdefault(f"{found[1]}.{found[2]}", []).append(tensors.pop(name))
    tensors |= {f"{name}.weight": torch.stack(experts) for name, experts in stacks.items()}
    names = gguf.get_tensor_name_map(
        next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch), config.num_hidden_layers
    )
    for name, tensor in tensors.items():
        for stored, value in converted(name, tensor, arch, config, split_latent):
            target = names.get_name(stored, try_suffixes=(".weight", ".bias"))
            assert target is not None, stored
            small = value.dim() == 1 or target.endswith(("ffn_gate_inp.weight", "attn_k_b.weight"))
            quantization = gguf.GGMLQuantizationType["F32" if small else kind]
            data = gguf.quants.quantize(value.contiguous().numpy(), quantization)
            if k_experts and target.endswith("exps.weight"):
                quantization = gguf.GGMLQuantizationType["Q6_K" if "down" in target else "Q4_K"]
                data = random_k_experts(quantization, tuple(value.shape))
            writer.add_tensor(target, data, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return root / "model.gguf", model


def random_k_experts(kind: gguf.GGMLQuantizationType, shape: tuple[int, int, int]) -> np.ndarray:
    """Random blocks with weights below 1, because the gguf package does not quantize to these types."""
    experts, rows, columns = shape
    blocks = random_rows(kind, experts * rows, columns).reshape(-1, TYPES[kind].bytes)
    for at in SCALES.get(kind.name, [0, 2]):
        scales = blocks[:, at : at + 2].copy().view(np.float16) * np.float16(1e-4)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(experts, rows, -1)


def add_settings(writer: Any, arch: str, config: Any, family: str, split_latent: bool) -> None:
    rope = config.rope_parameters
    add_sizes(writer, config)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    writer.add_expert_count(next(getattr(config, name) for name in names if hasattr(config, name)))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if arch != "llama":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch == "qwen3moe":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if arch != "deepseek2":
        return
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim if split_latent else head_dim)
    writer.add_value_length(config.kv_lora_rank if split_latent else config.v_head_dim)
    if split_latent:
        writer.add_key_length_mla(head_dim)
        writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if family == "deepseek-v3":
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if family != "deepseek-v2-lite":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def converted(
    name: str, tensor: torch.Tensor, arch: str, config: Any, split_latent: bool
) -> list[tuple[str, torch.Tensor]]:
    """A tensor as llama.cpp stores it."""
    if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        return [(name, permute(tensor, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads))]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, tensor.squeeze())]
    if name.endswith("kv_b_proj.weight") and split_latent:
        heads = tensor.view(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = heads.split((config.qk_nope_head_dim, config.v_head_dim), dim=1)
        return [(name.replace("kv_b", "k_b"), keys.transpose(1, 2)), (name.replace("kv_b", "v_b"), values)]
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor)]
    return [(name, tensor)]


@pytest.mark.parametrize("family", MODELS)
def test_a_mixture_is_the_model_it_was_made_of(family: str, tmp_path: Path) -> None:
    path, model = write_mixture(family, tmp_path)
    checkpoint, state = GGUF(path), load_file(tmp_path / "hf" / "model.safetensors")
    assert sorted(checkpoint.names()) == sorted(state)
    for name, tensor in state.items():
        assert checkpoint.shape(name) == tuple(tensor.shape), name
        assert torch.equal(checkpoint.tensor(name), tensor), name
    llm = LLM(path, dtype="float32")
    torch.testing.assert_close(llm.logits(PROMPT), reference_logits(model, PROMPT), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["deepseek-v2-lite", "deepseek-v3"])
def test_older_files_have_one_latent_projection(family: str, tmp_path: Path) -> None:
    path, model = write_mixture(family, tmp_path, split_latent=False)
    logits = LLM(path, dtype="float32").logits(PROMPT)
    torch.testing.assert_close(logits, reference_logits(model, PROMPT), rtol=1e-3, atol=1e-3)


def test_parts_of_the_latent_projection(tmp_path: Path) -> None:
    checkpoint = GGUF(write_mixture("deepseek-v3", tmp_path)[0])
    name = "model.layers.0.self_attn.kv_b_proj.weight"
    whole = checkpoint.tensor(name)
    for axis, start, length in ((0, 7, 30), (0, 20, 20), (0, 0, 80), (1, 3, 9)):
        part = Part(axis, start, length)
        assert torch.equal(checkpoint.tensor(name, torch.float32, part), whole.narrow(*part))
    assert checkpoint.format(name) is None


@pytest.mark.parametrize("family", ["mixtral", "qwen2-moe", "deepseek-v3"])
def test_experts_stay_packed(family: str, tmp_path: Path) -> None:
    path, _ = write_mixture(family, tmp_path, "Q8_0")
    packed, wide = LLM(path, dtype="float32", quant="keep"), GGUF(path)
    weight = packed.model.blocks[1]["experts.down"]
    assert isinstance(weight, Packed)
    name = "block_sparse_moe.experts.{}.w2" if family == "mixtral" else "mlp.experts.{}.down_proj"
    experts = [
        wide.tensor(f"model.layers.1.{name.format(i)}.weight", torch.float32) for i in range(weight.shape[0] // 64)
    ]
    assert torch.equal(weight.dequantize(torch.float32).flatten(0, -2), torch.cat(experts))


@pytest.mark.skipif(kernel() is None, reason="no C++ compiler")
@pytest.mark.parametrize("family", ["mixtral", "qwen2-moe", "deepseek-v3"])
def test_experts_of_k_types_run_packed(family: str, tmp_path: Path) -> None:
    """Compared with transformers on the dequantized weights, with exact inputs and with rounded ones."""
    path, model = write_mixture(family, tmp_path, k_experts=True)
    checkpoint = GGUF(path)
    wide = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    save_file(wide, tmp_path / "hf" / "model.safetensors")
    truth = reference_logits(type(model).from_pretrained(tmp_path / "hf", attn_implementation="eager"), PROMPT)
    for exact, most in ((True, 1e-4), (False, 0.02)):
        llm = LLM(path, device="cpu", dtype="float32", exact_inputs=exact)
        experts = [llm.model.blocks[1][f"experts.{part}"] for part in ("gate_up", "down")]
        assert [weight.bits for weight in experts if isinstance(weight, Tiles)] == [4, 6]
        error = (llm.logits(PROMPT) - truth).norm() / truth.norm()
        assert error < most, error


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (b"deepseek2.expert_used_count", r"'num_experts_per_tok' must be a whole number between 1 and "),
        (b"deepseek2.attention.kv_lora_rank", r"'kv_lora_rank' must be a whole number between 1 and "),
        (b"deepseek2.rope.dimension_count", r"'qk_rope_head_dim' must be a whole number between 2 and "),
        (b"blk.0.attn_k_b.weight", r"has no tensor 'model\.layers\.0\.self_attn\.kv_b_proj\.weight', which its "),
        (b"blk.1.ffn_up_exps.weight", r"has no tensor 'model\.layers\.1\.mlp\.experts\.0\.up_proj\.weight', which "),
    ],
)
def test_what_is_missing_is_one_sentence(key: bytes, sentence: str, tmp_path: Path) -> None:
    path, _ = write_mixture("deepseek-v3", tmp_path)
    path.write_bytes(path.read_bytes().replace(key, key[:-1] + b"x"))
    with pytest.raises(UserError, match=sentence):
        LLM(path)
