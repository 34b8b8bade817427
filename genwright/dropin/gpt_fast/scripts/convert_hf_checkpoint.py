"""gpt-fast's conversion script: a Hugging Face folder, or Mixtral's consolidated files, to model.pth beside them."""

import argparse
import re
import shutil
from pathlib import Path

import torch
from model import ModelArgs
from torch import Tensor

from genwright.dropin.transformer.checkpoint import find_args, save_state
from genwright.dropin.transformer.model_args import ModelArgs as Args
from genwright.errors import UserError
from genwright.text.checkpoints.check_tensors import check_tensors
from genwright.text.checkpoints.gptfast import EXPERTS, LAYER, OUTER
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.pickled import load_pickled
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.rope_order import neighbours_from_halves
from genwright.text.export.convert import check_gptfast

default_folder = Path("checkpoints/meta-llama/llama-2-7b-chat-hf")
_QKV = re.compile(r"(layers\.\d+\.attention\.)wq\.weight")
_EXPERT = re.compile(r"(.*block_sparse_moe\.)(w[123])")


@torch.inference_mode()
def convert_hf_checkpoint(*, checkpoint_dir: Path = default_folder, model_name: str | None = None) -> None:
    """Write `checkpoint_dir`/model.pth; `model_name` says the model's shape, else config.json or the folder's name."""
    if not checkpoint_dir.is_dir():
        raise UserError(f"There is no folder {checkpoint_dir}.")
    config = ModelArgs.from_name(model_name) if model_name else find_args(checkpoint_dir, ModelArgs)
    print(f"Model config {vars(config)}")
    consolidated = sorted(checkpoint_dir.glob("*.pt"))
    if config.num_experts is not None and consolidated:
        state = from_consolidated(consolidated, config)
    else:
        state = from_hugging_face(open_checkpoint(str(checkpoint_dir)))
    target = checkpoint_dir / "model.pth"
    print(f"Saving checkpoint to {target}")
    save_state(state, target)
    original = checkpoint_dir / "original"
    for tokenizer in (original / "mp16" / "tokenizer.model", original / "tokenizer.model"):
        if tokenizer.is_file():
            print(f"Copying {tokenizer} to {checkpoint_dir / 'tokenizer.model'}")
            shutil.copy(tokenizer, checkpoint_dir / "tokenizer.model")


def from_hugging_face(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Tensors by gpt-fast's names: q, k and v fused, rotary channels as neighbours, experts stacked."""
    check_gptfast(checkpoint)
    check_tensors(checkpoint)
    cfg, stored = checkpoint.config, {ours: theirs for theirs, ours in OUTER.items()}
    if cfg.tied:
        stored["output.weight"] = stored["tok_embeddings.weight"]
    state = {ours: checkpoint.tensor(theirs) for ours, theirs in stored.items()}
    for layer in range(cfg.layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        q, k, v = (checkpoint.tensor(f"{theirs}self_attn.{part}_proj.weight") for part in "qkv")
        q, k = (neighbours_from_halves(each, cfg.head_dim) for each in (q, k))
        state[f"{ours}attention.wqkv.weight"] = torch.cat([q, k, v])
        plain = {old: new for old, new in LAYER.items() if not re.search(r"[qkv]_proj", old)}
        if cfg.moe is not None:
            plain = {old: new for old, new in plain.items() if not old.startswith("mlp.")}
            plain["block_sparse_moe.gate.weight"] = "block_sparse_moe.gate.weight"
            for part in "123":
                names = [f"{theirs}block_sparse_moe.experts.{e}.w{part}.weight" for e in range(cfg.moe.experts)]
                state[f"{ours}{EXPERTS}{part}"] = torch.stack([checkpoint.tensor(each) for each in names])
        state |= {ours + new: checkpoint.tensor(theirs + old) for old, new in plain.items()}
    return state


def from_consolidated(files: list[Path], config: Args) -> dict[str, Tensor]:
    """The same from Mixtral's *.pt files, in which experts lie one below the other and w2 is transposed."""
    assert config.num_experts is not None and config.intermediate_size is not None
    merged: dict[str, Tensor] = {}
    for file in files:
        merged |= load_pickled(file)
    state = {}
    for name, tensor in merged.items():
        if found := _QKV.fullmatch(name):
            parts = [merged[f"{found[1]}w{part}.weight"] for part in "qkv"]
            state[f"{found[1]}wqkv.weight"] = torch.cat(parts)
        elif found := _EXPERT.fullmatch(name):
            stacked = tensor.view(config.num_experts, config.intermediate_size, config.dim)
            stacked = stacked.transpose(1, 2) if found[2] == "w2" else stacked
            state[f"{found[1]}cond_ffn.{found[2]}"] = stacked.contiguous()
        elif not re.search(r"attention\.w[kv]\.weight", name):
            state[name] = tensor
    return state


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Convert a Hugging Face folder to gpt-fast's model.pth.")
    parser.add_argument("--checkpoint_dir", type=Path, default=default_folder, help="The folder.")
    parser.add_argument("--model_name", default=None, help="The model's name; default: config.json, else the folder's.")
    return parser


if __name__ == "__main__":
    convert_hf_checkpoint(**vars(parser().parse_args()))
