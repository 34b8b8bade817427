"""Folders of other libraries: the weights by their definitions, packed where exact, in parts, and by the libraries."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from text.checkpoints.library_folders import KINDS, write_library_folder

from genwright import LLM
from genwright.errors import UserError
from genwright.quant.packed import Packed
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert

PROMPT = [1, *range(5, 45)]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_definition(kind: str, tmp_path: Path) -> None:
    """Each value, whole and in parts, as floats and packed; and the model's logits."""
    quantized, plain = write_library_folder(tmp_path, kind)
    checkpoint, expected = open_checkpoint(str(quantized)), open_checkpoint(str(plain))
    assert sorted(checkpoint.names()) == sorted(expected.names())
    form = KINDS[kind][2]
    for name in [name for name in checkpoint.names() if "layers.0." in name]:
        whole, shape = expected.tensor(name), checkpoint.shape(name)
        assert torch.equal(checkpoint.tensor(name, torch.float32), whole), name
        stored = checkpoint.format(name)
        assert (None if stored is None else stored.name) == (form if name.endswith("_proj.weight") else None)
        if stored is not None:
            assert torch.equal(checkpoint.packed(name).dequantize(torch.float32), whole)
        for axis, size in enumerate(shape):
            cuts = [0, size // 3, size // 3 + 1, size]
            parts = [Part(axis, start, end - start) for start, end in pairwise(cuts)]
            assert torch.equal(torch.cat([checkpoint.tensor(name, torch.float32, p) for p in parts], axis), whole)
            if stored is not None and size > (unit := stored.unit(axis)):
                parts = [Part(axis, 0, unit), Part(axis, unit, size - unit)]
                joined = [checkpoint.packed(name, part).dequantize(torch.float32) for part in parts]
                assert torch.equal(torch.cat(joined, axis), whole)
    ours, theirs = LLM(quantized, dtype="float32", exact_inputs=True), LLM(plain, dtype="float32")
    assert isinstance(ours.model.blocks[0]["qkv"], Packed) == (form is not None)
    logits = theirs.logits(PROMPT)
    assert (ours.logits(PROMPT) - logits).norm() / logits.norm() < 5e-3


def test_a_converted_folder_is_plain(tmp_path: Path) -> None:
    quantized, plain = write_library_folder(tmp_path, "awq")
    convert(open_checkpoint(str(quantized)), tmp_path / "new", "safetensors", torch.float32, lambda *_: None)
    assert "quantization_config" not in json.loads((tmp_path / "new" / "config.json").read_text())
    new, old = (load_file(folder / "model.safetensors") for folder in (tmp_path / "new", plain))
    assert new.keys() == old.keys() and all(torch.equal(new[name], old[name]) for name in new)


def damaged(folder: Path, end: str, change: str) -> str:
    """Remove or shorten one tensor; the name of its matrix."""
    tensors = load_file(folder / "model.safetensors")
    stem = "model.layers.1.mlp.down_proj"
    tensor = tensors.pop(f"{stem}.{end}")
    if change == "short":
        tensors[f"{stem}.{end}"] = tensor[:-1].clone()
    elif change == "type":
        tensors[f"{stem}.{end}"] = tensor.double()
    save_file(tensors, folder / "model.safetensors")
    return stem


@pytest.mark.parametrize("change", ["none", "short", "type"])
@pytest.mark.parametrize(
    ("kind", "end", "library"),
    [
        ("awq", "scales", "AutoAWQ"),
        ("awq", "qzeros", "AutoAWQ"),
        ("gptq sym", "qzeros", "GPTQ"),
        ("gptq sym", "scales", "GPTQ"),
        ("compressed int4", "weight_scale", "compressed-tensors"),
        ("compressed int4", "weight_packed", "compressed-tensors"),
        ("bitsandbytes nf4", "weight.quant_map", "bitsandbytes"),
        ("bitsandbytes nf4", "weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
        ("bitsandbytes int8", "weight", "bitsandbytes"),
    ],
)
def test_a_damaged_folder_is_one_sentence(kind: str, end: str, library: str, change: str, tmp_path: Path) -> None:
    folder, _ = write_library_folder(tmp_path, kind)
    stem = damaged(folder, end, change)
    with pytest.raises(UserError, match=f"model.safetensors has {stem!r} in a layout that {library} does not write: "):
        LLM(folder)


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("awq", {"version": "gemv"}, r"'version' must be gemm, the only supported layout, not 'gemv'\.$"),
        ("awq", {"quant_method": "aqlm"}, r"'quant_method' must be one of fp8, awq, gptq, compressed-tensors, "),
        ("awq", {"quant_method": ["awq"]}, r"'quant_method' must be one of fp8, awq, gptq, compressed-tensors, "),
        ("awq", {"quant_method": "bitsandbytes"}, r"has no tensor 'model\.layers\.0\.self_attn\.q_proj\.weight'"),
        ("torchao Int8Tensor", {}, r"its class is '', which is not supported\.$"),
    ],
)
def test_a_wrong_setting_is_one_sentence(kind: str, change: dict[str, str], sentence: str, tmp_path: Path) -> None:
    folder, _ = write_library_folder(tmp_path, kind)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    if not change:  # lose the metadata
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    with pytest.raises(UserError, match=sentence):
        LLM(folder)
