"""FlexLLMGen's folders of arrays."""

import json

import numpy as np
import pytest
import torch
from text.families import make

from genwright import LLM
from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint

PROMPT = [5, 17, 100, 3, 9]


def write_arrays(model, folder):
    """As FlexLLMGen's download_opt_weights names them, with a copy of the embedding as the head."""
    folder.mkdir()
    for name, tensor in model.state_dict().items():
        name = name.replace("model.", "").replace("decoder.final_layer_norm", "decoder.layer_norm")
        with (folder / name).open("wb") as file:
            np.save(file, tensor.numpy())
    return folder


@pytest.mark.parametrize("family", ["opt", "opt-350m", "galactica"])
def test_arrays_are_the_same_model(family, tmp_path):
    model = make(family, tmp_path / "hf")
    folder = write_arrays(model, tmp_path / "np")
    (folder / "config.json").write_text((tmp_path / "hf" / "config.json").read_text())
    expected = LLM(tmp_path / "hf", device="cpu", dtype="float32").logits(PROMPT)
    assert torch.equal(LLM(folder, device="cpu", dtype="float32").logits(PROMPT), expected)
    (folder / "decoder.layers.2.fc1.weight").rename(folder / "decoder.layers.2.fc1.weight.npy")
    assert torch.equal(LLM(folder, device="cpu", dtype="float32").logits(PROMPT), expected)


def test_tensors_saved_without_the_models_prefix_load(tmp_path):
    model = make("opt", tmp_path / "hf")
    bare = {name.removeprefix("model."): tensor.clone() for name, tensor in model.state_dict().items()}
    model.config.save_pretrained(tmp_path / "bare")
    torch.save(bare, tmp_path / "bare" / "pytorch_model.bin")
    expected = LLM(tmp_path / "hf", device="cpu", dtype="float32").logits(PROMPT)
    assert torch.equal(LLM(tmp_path / "bare", device="cpu", dtype="float32").logits(PROMPT), expected)


def test_the_fitting_shape_is_found_without_a_configuration(tmp_path):
    zero = np.zeros(1, np.float16)
    folder = tmp_path / "opt-6.7b-np"
    folder.mkdir()
    shapes = {"decoder.embed_tokens.weight": (50272, 4096), "decoder.layers.31.fc1.weight": (16384, 4096)}
    for name, shape in shapes.items():
        header = {"descr": "<f2", "fortran_order": False, "shape": shape}
        with (folder / name).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 2 * int(np.prod(shape)))
    assert zero.itemsize == 2
    cfg = open_checkpoint(str(folder)).config
    assert (cfg.layers, cfg.heads, cfg.dtype) == (32, 32, "float16")
    assert open_checkpoint(str(folder), arch="opt-iml-30b").config.dim == 7168
    with pytest.raises(UserError, match=r"opt-6\.7b-np has no tensor 'model\.decoder\.embed_positions\.weight'"):
        LLM(folder, device="cpu")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data[:40], r"fc1\.weight is not a valid NumPy file"),
        (lambda data: data[:-100], r"fc1\.weight is not a valid NumPy file"),
        (
            lambda data: data.replace(b"<f4", b"<i4"),
            r"fc1\.weight stores int32; weights must be float16, float32 or float64",
        ),
        (lambda data: data.replace(b"<f4", b"|O8"), r"fc1\.weight is not a valid NumPy file"),
        (lambda data: data.replace(b"(96, 64)", b"(64, 96)"), r"fc1\.weight has 'model.* of shape \[64, 96\]"),
    ],
)
def test_damaged_arrays_are_one_sentence(damage, sentence, tmp_path):
    model = make("opt", tmp_path / "hf")
    folder = write_arrays(model, tmp_path / "np")
    (folder / "config.json").write_text((tmp_path / "hf" / "config.json").read_text())
    file = folder / "decoder.layers.1.fc1.weight"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=sentence) as error:
        LLM(folder, device="cpu").logits(PROMPT)
    assert len(str(error.value).splitlines()) == 1


def test_another_architectures_configuration_is_refused(tmp_path):
    folder = write_arrays(make("opt", tmp_path / "hf"), tmp_path / "np")
    make("llama", tmp_path / "llama")
    (folder / "config.json").write_text(json.dumps(json.loads((tmp_path / "llama" / "config.json").read_text())))
    with pytest.raises(UserError, match="holds OPT's arrays, but its configuration is of another architecture"):
        open_checkpoint(str(folder))
