"""Folders of tiny DeepSeek models as they are published: a multi-token-prediction layer, FP8 blocks."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from genwright.quant.fp8 import quantize

LAYERS = 3


def with_draft(folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Add a multi-token-prediction layer to a folder of transformers', which does not save one; all its tensors."""
    tensors = load_file(folder / "model.safetensors")
    dim = tensors["model.norm.weight"].shape[0]
    torch.manual_seed(seed)
    last, new = f"model.layers.{LAYERS - 1}.", f"model.layers.{LAYERS}."
    like = {name: torch.randn_like(tensor) * 0.3 for name, tensor in tensors.items() if name.startswith(last)}
    draft = {name.replace(last, new): 1 + t / 5 if name.endswith("norm.weight") else t for name, t in like.items()}
    draft |= {f"{new}{name}.weight": 1 + torch.randn(dim) / 5 for name in ("enorm", "hnorm", "shared_head.norm")}
    draft[f"{new}eh_proj.weight"] = torch.randn(dim, 2 * dim) / 8
    draft[f"{new}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    draft[f"{new}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({**tensors, **draft}, folder / "model.safetensors", {"format": "pt"})
    return {**tensors, **draft}


def transformers_layer(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> MtpModel:
    """transformers' own multi-token-prediction layer behind the model, with these weights."""
    layer = MtpModel(model, 1).float().eval()
    missing, unexpected = layer.load_state_dict(_renamed(tensors), strict=False)
    assert not unexpected and not [name for name in missing if name.startswith("layers.")]
    return layer


def _renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' names for the layer's tensors."""
    prefix, named = f"model.layers.{LAYERS}.", {}
    own = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "post_norm"}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            inner = name.removeprefix(prefix)
            stem = inner.removesuffix(".weight")
            named[f"layers.0.{own[stem]}.weight" if stem in own else f"layers.0.mtp_block.{inner}"] = tensor
    experts = "layers.0.mtp_block.mlp.experts."
    count = 1 + max(int(name.removeprefix(experts).split(".")[0]) for name in named if name.startswith(experts))
    gate, up, down = (
        [named.pop(f"{experts}{expert}.{part}_proj.weight") for expert in range(count)]
        for part in ("gate", "up", "down")
    )
    named[f"{experts}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
    named[f"{experts}down_proj"] = torch.stack(down)
    return {name: tensor for name, tensor in named.items() if "embed_tokens" not in name and "shared_head" not in name}


# As in published checkpoints, these stay in 16 bits.
DENSE = ("norm.weight", "embed_tokens.weight", "head.weight", "gate.weight", "bias", "eh_proj.weight")


def in_fp8(source: Path, target: Path, scale_fmt: str | None = None) -> None:
    """A folder as DeepSeek publishes: FP8 blocks with `weight_scale_inv`, the rest in bfloat16, the bias in float32."""
    shutil.copytree(source, target)
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = tensor
        elif name.endswith(DENSE):
            tensors[name] = tensor.bfloat16()
        else:
            packed = quantize(tensor, scale_fmt)
            scales = packed.scales.to(torch.float8_e8m0fnu) if scale_fmt else packed.scales
            tensors |= {name: packed.values, f"{name}_scale_inv": scales}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": scale_fmt}
    (target / "config.json").write_text(
        json.dumps({**config, "dtype": "bfloat16", "quantization_config": quantization})
    )
