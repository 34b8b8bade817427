"""GGUF files that we write: read back by our reader and by the gguf package, they are the model that was written."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from text.families import make

from genwright import LLM
from genwright.errors import UserError
from genwright.quant.ggml_blocks import BLOCK_TYPES
from genwright.text.architectures.class_defaults import with_defaults
from genwright.text.architectures.registry import architecture, read_config
from genwright.text.checkpoints.gguf import GGUF
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import GGUF_FORMATS
from genwright.text.export.gguf import write_gguf

PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
MSCALES = {"mscale": 0.7, "mscale_all_dim": 0.7}
FAMILIES = {
    **{family: {} for family in ("llama", "llama-mha", "llama-biased", "llama-linear", "llama-3.2", "mistral")},
    **{family: {} for family in ("qwen2", "qwen2-yarn", "qwen3", "mixtral", "qwen2-moe", "deepseek-v2")},
    "gemma3": {"query_pre_attn_scalar": 24},
    "qwen3-moe": {"mlp_only_layers": []},
    "deepseek-v3": {"rope_parameters": {**YARN, **MSCALES}},
    "deepseek-v2-lite": {"rope_parameters": {**YARN, **MSCALES}},
}


def write(folder: Path, target: Path, form: str = "gguf", dtype: torch.dtype | None = None) -> GGUF:
    write_gguf(open_checkpoint(str(folder)), target, form, dtype, lambda done, total: None)
    return GGUF(target)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_written_file_is_the_model(family: str, tmp_path: Path) -> None:
    make(family, tmp_path / "hf", FAMILIES[family])
    written, source = write(tmp_path / "hf", tmp_path / "new.gguf"), open_checkpoint(str(tmp_path / "hf"))
    ours, theirs = written.config, source.config
    rounded = {name: getattr(theirs, name) for name in ("rope", "norm_eps", "moe")}
    assert replace(ours, **rounded) == replace(theirs, draft_layers=0)
    assert read_config(with_defaults(written.hf_config), "as a config.json") == ours
    for name in written.names():
        rounding = 1e-6 if family == "gemma3" else 0  # llama.cpp adds one to its norms
        torch.testing.assert_close(written.tensor(name), source.tensor(name), rtol=rounding, atol=rounding)
    logits = [LLM(path, dtype="float32").logits(PROMPT) for path in (tmp_path / "new.gguf", tmp_path / "hf")]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gguf_package_reads_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    make("qwen2", tmp_path / "hf")
    source = open_checkpoint(str(tmp_path / "hf"))
    write(tmp_path / "hf", tmp_path / "new.gguf", dtype=dtype)
    reader = gguf.GGUFReader(tmp_path / "new.gguf")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 3)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(stored) == len(source.names())
    for name in source.names():
        tensor = stored[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        wide = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        expected = source.tensor(name)
        assert torch.equal(wide, expected if expected.dim() == 1 else expected.to(dtype).float()), name


@pytest.mark.parametrize("form", GGUF_FORMATS[1:])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_packed_types_hold_our_formats(form: str, family: str, tmp_path: Path) -> None:
    """By the gguf package's formulas; matrices that are packed alike are copied bit by bit."""
    make(family, tmp_path / "hf")
    written, source = write(tmp_path / "hf", tmp_path / "new.gguf", form), open_checkpoint(str(tmp_path / "hf"))
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "new.gguf").tensors}
    formats = {name: block[1] for name, block in BLOCK_TYPES.items()}
    for name, theirs in (("model.layers.1.self_attn.o_proj", "blk.1.attn_output"), ("lm_head", "output")):
        kind = "Q8_0" if theirs == "output" else form.upper()
        tensor = stored[f"{theirs}.weight"]
        wide = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        assert tensor.tensor_type.name == kind
        assert torch.equal(wide, formats[kind].quantize(source.tensor(f"{name}.weight")).dequantize(torch.float32))
    for each in architecture(source.config).weight_map(source.config).tensors():
        if "_proj" in each.name or ".experts." in each.name:
            packed = formats[form.upper()].quantize(source.tensor(each.name))
            assert torch.equal(written.packed(each.name).dequantize(torch.float32), packed.dequantize(torch.float32))
    again = tmp_path / "again.gguf"
    write(tmp_path / "new.gguf", again, form)
    assert {t.name: t.data.tobytes() for t in gguf.GGUFReader(again).tensors} == {
        name: tensor.data.tobytes() for name, tensor in stored.items()
    }


def test_the_default_model_is_written_as_it_was(smollm2: Path, tmp_path: Path) -> None:
    new, old = write(smollm2, tmp_path / "new.gguf", "q4_1"), GGUF(smollm2)
    assert sorted(new.names()) == sorted(old.names())
    assert all(new.stored(name) == old.stored(name) for name in old.names())
    for name in [name for name in old.names() if ".0." in name and name.endswith("_proj.weight")]:
        assert torch.equal(new.tensor(name), old.tensor(name)), name
    kept = {key: value for key, value in old.metadata.items() if key.startswith(("tokenizer.", "llama."))}
    assert kept == {key: new.metadata[key] for key in kept}


@pytest.mark.parametrize(
    ("family", "sizes", "sentence"),
    [
        ("opt", {}, r"is a model of the architecture opt, which GGUF cannot hold\.$"),
        ("qwen2-window", {}, r"cannot be written as GGUF, which has no way to store its windows\.$"),
        ("qwen3-moe", {}, r"cannot be written as GGUF, which has no way to store its experts\.$"),
        ("deepseek-v3", {}, r"cannot be written as GGUF, because its two YaRN mscales differ\.$"),
        ("dynamic", {}, r"cannot be written as GGUF, because its RoPE scaling is dynamic\.$"),
    ],
)
def test_what_gguf_cannot_hold_is_one_sentence(
    family: str, sizes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    make(family, tmp_path / "hf", sizes)
    with pytest.raises(UserError, match=sentence):
        write(tmp_path / "hf", tmp_path / "new.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
