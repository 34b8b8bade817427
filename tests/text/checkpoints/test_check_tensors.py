"""Unused tensors of a checkpoint: an error, a warning, or known buffers; in every format."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.families import make

from genwright.errors import GenwrightWarning, UserError
from genwright.text.checkpoints.check_tensors import check_tensors
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert


def check(path: Path) -> list[str]:
    """The warnings about a checkpoint's tensors."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", GenwrightWarning)
        check_tensors(open_checkpoint(str(path)))
    return [str(warning.message) for warning in told]


def hugging_face(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    make("qwen3", folder)  # without biases
    save_file({**load_file(folder / "model.safetensors"), **extra}, folder / "model.safetensors", {"format": "pt"})
    return folder


def gguf_file(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    return write_gguf(folder / "model.gguf", tiny_model("llama"), extra=extra)


def gptfast(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    make("llama", folder / "source")
    convert(open_checkpoint(str(folder / "source")), folder / "out", "gptfast", torch.float32, lambda *_: None)
    torch.save({**torch.load(folder / "out" / "model.pth"), **extra}, folder / "out" / "model.pth")
    return folder / "out"


def deepseek(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    make("deepseek-v2", folder / "source")
    convert(open_checkpoint(str(folder / "source")), folder / "out", "deepseek", None, lambda *_: None)
    shard = folder / "out" / "model0-mp1.safetensors"
    save_file({**load_file(shard), **extra}, shard)
    return folder / "out"


def opt(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    model = make("galactica", folder)  # without biases
    (folder / "model.safetensors").unlink()
    for name, tensor in {**model.model.state_dict(), **extra}.items():
        with (folder / name).open("wb") as file:
            np.save(file, tensor.numpy())
    return folder


# Format: how to write it with more tensors, a tensor that would change the result, a buffer, an unknown tensor.
FORMATS: dict[str, tuple[Callable[[Path, dict[str, torch.Tensor]], Path], str, str, str]] = {
    "Hugging Face": (
        *(hugging_face, "model.layers.1.self_attn.q_proj.bias"),
        *("model.layers.1.self_attn.rotary_emb.inv_freq", "model.vision.weight"),
    ),
    "GGUF": (gguf_file, "blk.1.attn_q_norm.weight", "rope_freqs.weight", "position_embd.weight"),
    "gpt-fast": (gptfast, "layers.0.attention.wo.bias", "freqs_cis", "value_head.weight"),
    "DeepSeek": (deepseek, "layers.1.attn.wo.bias", "layers.1.attn.rotary_emb.inv_freq", "mtp.weight"),
    "OPT": (opt, "decoder.layers.0.fc1.bias", "decoder.version", "decoder.adapter.weight"),
}


@pytest.mark.parametrize("form", FORMATS)
def test_no_tensor_is_dropped_in_silence(form: str, tmp_path: Path) -> None:
    write, wrong, idle, unknown = FORMATS[form]
    values = torch.ones(8)  # of RoPE's frequencies in a head of the tiny GGUF
    assert check(write(tmp_path / "idle", {idle: values})) == []
    (line,) = check(write(tmp_path / "unknown", {unknown: values}))
    assert "has a tensor that the model does not use: " in line and unknown in line
    with pytest.raises(UserError, match=r"which its configuration does not use") as error:
        check(write(tmp_path / "wrong", {wrong: values}))
    assert wrong.split(".")[-1] in str(error.value) and str(error.value).count("\n") == 0


def test_layers_behind_the_last_are_told_of_unless_they_predict_tokens(tmp_path: Path) -> None:
    make("deepseek-v3", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 2, "num_nextn_predict_layers": 1}))
    assert check(tmp_path) == []
    path.write_text(json.dumps({**config, "num_hidden_layers": 2, "num_nextn_predict_layers": 0}))
    (line,) = check(tmp_path)
    assert "tensors that the model does not use: 'model.layers.2." in line


def test_a_tied_head_may_be_stored_but_not_be_another(tmp_path: Path) -> None:
    embedding = load_file(hugging_face(tmp_path, {}) / "model.safetensors")["model.embed_tokens.weight"]
    assert check(hugging_face(tmp_path, {"lm_head.weight": embedding.clone()})) == []
    hugging_face(tmp_path, {"lm_head.weight": embedding + 1})
    with pytest.raises(
        UserError, match=r"has the tensor 'lm_head\.weight', which differs from 'model\.embed_tokens\.weight'"
    ):
        check(tmp_path)
