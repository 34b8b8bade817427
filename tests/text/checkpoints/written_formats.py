"""The same tiny model written in every format."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from text.checkpoints.tiny_gguf import write_gguf
from text.families import make
from transformers import PreTrainedModel

from genwright import LLM

PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]


def state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A model's tensors, each once and with a storage of its own."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def write_sharded(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 3


def write_bin(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {name: torch.nn.Parameter(tensor) for name, tensor in state(model).items()}  # as some were saved
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)  # so were buffers that are none today
    torch.save(tensors, folder / "pytorch_model.bin")


def write_sharded_bin(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = state(model)
    where = {name: f"pytorch_model-{1 + index % 3:05}-of-00003.bin" for index, name in enumerate(tensors)}
    for file in set(where.values()):
        torch.save({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def neighbours(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Row 2i of a head is the i-th of its first half, row 2i + 1 the i-th of its second: as Meta rotates them."""
    half = head_dim // 2
    rows = [
        head * head_dim + pair + part * half
        for head in range(len(weight) // head_dim)
        for pair in range(half)
        for part in (0, 1)
    ]
    return weight[rows]


def meta_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors by Meta's names, as gpt-fast and the stories models have them, q, k and v apart."""
    theirs, config = model.state_dict(), model.config
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    tensors = {
        "tok_embeddings.weight": theirs["model.embed_tokens.weight"],
        "norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }
    for layer in range(model.config.num_hidden_layers):
        of, to = f"model.layers.{layer}.", f"layers.{layer}."
        tensors |= {
            f"{to}attention.wq.weight": neighbours(theirs[f"{of}self_attn.q_proj.weight"], head_dim),
            f"{to}attention.wk.weight": neighbours(theirs[f"{of}self_attn.k_proj.weight"], head_dim),
            f"{to}attention.wv.weight": theirs[f"{of}self_attn.v_proj.weight"],
            f"{to}attention.wo.weight": theirs[f"{of}self_attn.o_proj.weight"],
            f"{to}attention_norm.weight": theirs[f"{of}input_layernorm.weight"],
            f"{to}ffn_norm.weight": theirs[f"{of}post_attention_layernorm.weight"],
        }
        for number, name in ((1, "gate"), (2, "down"), (3, "up")):
            if f"{of}mlp.{name}_proj.weight" in theirs:  # not Mixtral's
                tensors[f"{to}feed_forward.w{number}.weight"] = theirs[f"{of}mlp.{name}_proj.weight"]
    return {name: tensor.clone() for name, tensor in tensors.items()}


def gptfast_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tensors = meta_tensors(model)
    for layer in range(model.config.num_hidden_layers):
        attention = f"layers.{layer}.attention."
        tensors[f"{attention}wqkv.weight"] = torch.cat([tensors.pop(f"{attention}w{x}.weight") for x in "qkv"])
    return tensors


def write_gptfast(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(gptfast_tensors(model), folder / "model.pth")


def write_stories(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in meta_tensors(model).items()}
    torch.save({"model": tensors, "iter_num": 7, "model_args": {"dim": 64}}, folder / "stories15M.pt")


FORMATS: dict[str, Callable[[PreTrainedModel, Path], object]] = {
    "sharded safetensors": write_sharded,
    "bin": write_bin,
    "sharded bin": write_sharded_bin,
    "gguf": lambda model, folder: write_gguf(folder / "model.gguf", model),
    "gptfast": write_gptfast,
    "stories": write_stories,
}
# Families without biases and q and k norms, which Meta's layout cannot hold.
PLAIN = ("llama", "llama-3.2", "mistral", "codellama")
LATER = ("opt-350m", "mixtral", "qwen2-moe", "deepseek-v3")


SOURCES = {"safetensors": lambda model, folder: model.save_pretrained(folder), **FORMATS}


def logits(path: Path, dtype: str = "float32", arch: str | None = None) -> torch.Tensor:
    return LLM(path, device="cpu", dtype=dtype, arch=arch, exact_inputs=True).logits(PROMPT)


def make_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PreTrainedModel, Path, torch.Tensor]]:
    """By family: transformers' model, its safetensors folder, and our logits of that folder."""
    made = {}
    for family in (*PLAIN, "qwen3", "llama-biased", *LATER):
        folder = tmp_path_factory.mktemp(family)
        made[family] = (make(family, folder), folder, logits(folder))
    return made
