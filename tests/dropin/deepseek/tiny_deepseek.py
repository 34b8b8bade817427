"""Tiny checkpoints of DeepSeek's shapes, with a tokenizer, and the runs of scripts on them."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from genwright.quant.fp8 import quantize
from genwright.text.architectures.registry import architecture
from genwright.text.checkpoints.deepseek import hf_config
from genwright.text.tokenizer.chat_template import find_template

ROOT = Path(__file__).parents[3]
TOKENS = ["<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
_SIZES = {"vocab_size": len(TOKENS), "max_batch_size": 3, "n_heads": 4, "n_layers": 2, "n_routed_experts": 8}
_SIZES |= {"n_activated_experts": 2, "max_seq_len": 256, "original_seq_len": 64, "rope_factor": 4, "mscale": 0.7}
_HEAD = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "kv_lora_rank": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "v2": {**_SIZES, "dim": 64, "inter_dim": 96, "moe_inter_dim": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16}
    | {"qk_rope_head_dim": 8, "v_head_dim": 16},
    # The original has a correction bias at this dim alone.
    "v3": {**_SIZES, **_HEAD, "dim": 7168, "inter_dim": 256, "moe_inter_dim": 128, "n_shared_experts": 2}
    | {"q_lora_rank": 128, "score_func": "sigmoid", "n_expert_groups": 4, "n_limited_groups": 2, "route_scale": 2.5}
    | {"dtype": "fp8"},
}
SEEDS = {"v2": 36, "v3": 20}
PROMPTS = ("one", "two words", "")
ANSWER = 12  # tokens


def random_tensors(name: str) -> dict[str, torch.Tensor]:
    """Weights with which the likeliest tokens stand out by more than rounding can change, as a folder has them."""
    from model import ModelArgs

    cfg = ModelArgs(**SHAPES[name]).model_config()
    torch.manual_seed(SEEDS[name])
    tensors: dict[str, torch.Tensor] = {}
    for source in architecture(cfg).weight_map(cfg).tensors():
        inputs = source.shape[-1]
        value = torch.randn(source.shape) * (0.1 if len(source.shape) == 1 else inputs**-0.5)
        if source.name.endswith("norm.weight"):
            value += 1
        elif source.name.endswith("embed_tokens.weight"):
            value *= inputs**0.5
        elif source.name.endswith(("o_proj.weight", "down_proj.weight")):
            value *= 0.5
        if source.name.endswith("e_score_correction_bias"):
            tensors[source.name] = value
        elif SHAPES[name].get("dtype") == "fp8" and len(source.shape) == 2 and "_proj" in source.name:
            packed = quantize(value)
            tensors |= {source.name: packed.values, f"{source.name}_scale_inv": packed.scales}
        else:
            tensors[source.name] = value.bfloat16()
    head, embed = "lm_head.weight", tensors["model.embed_tokens.weight"]
    tensors[head] = (tensors[head].float() + embed.roll(7, 0).float() * (5 / embed.shape[1])).bfloat16()
    return tensors


def write_checkpoint(folder: Path, name: str) -> None:
    from convert import main
    from model import ModelArgs

    target, args = folder / name, ModelArgs(**SHAPES[name])
    target.mkdir()
    save_file(random_tensors(name), target / "model.safetensors", {"format": "pt"})
    config = hf_config(asdict(args), name, draft=False)
    if args.dtype == "fp8":
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (target / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(TOKENS[:2])
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (target / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": find_template("chatml")}))
    (folder / f"{name}.json").write_text(json.dumps(SHAPES[name]))
    for ranks in (1, 2):
        main(str(target), str(folder / f"{name}-mp{ranks}"), args.n_routed_experts, ranks)


def run(
    command: list[str | Path], cwd: Path, python: str = sys.executable, typed: str = "", code: int = 0
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [python, *map(str, command)]
    done = subprocess.run(words, cwd=cwd, env=env, input=typed, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, done.stdout + done.stderr
    return done


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
