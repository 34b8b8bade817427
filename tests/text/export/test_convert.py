"""A checkpoint that is converted is the same model, read by us and by transformers."""

import json

import pytest
import torch
from text.checkpoints.written_formats import (
    LATER,
    PLAIN,
    PROMPT,
    SOURCES,
    gptfast_tensors,
    logits,
    state,
)
from text.families import reference_logits
from transformers import AutoModelForCausalLM

from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.protocol import parse_dtype
from genwright.text.export import convert as conversion
from genwright.text.export.convert import convert


@pytest.mark.parametrize("form", SOURCES)
def test_every_format_converts_to_safetensors(form, models, tmp_path):
    model, _, expected = models["llama"]
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    source.mkdir()
    SOURCES[form](model, source)
    calls: list[tuple[int, int]] = []
    convert(open_checkpoint(str(source)), target, "safetensors", torch.float32, lambda *call: calls.append(call))
    count = len(state(model))
    assert calls == [(done, count) for done in range(1, count + 1)]
    assert sorted(p.name for p in target.parent.iterdir()) == ["target"]
    assert torch.equal(logits(target), expected)
    theirs = AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager")
    assert theirs.dtype == torch.float32
    assert torch.equal(reference_logits(theirs, PROMPT), reference_logits(model, PROMPT))


@pytest.mark.parametrize("family", LATER)
def test_later_families_convert_to_safetensors(family, models, tmp_path):
    model, folder, expected = models[family]
    convert(open_checkpoint(str(folder)), tmp_path / "new", "safetensors", None, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "new"), expected)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", attn_implementation="eager")
    assert torch.equal(reference_logits(theirs, PROMPT), reference_logits(model, PROMPT))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shard", [conversion.SHARD_BYTES, 50_000])
def test_weights_are_rounded_once_and_shards_are_indexed(dtype, shard, models, tmp_path, monkeypatch):
    model, folder, _ = models["llama"]
    monkeypatch.setattr(conversion, "SHARD_BYTES", shard)
    kind = parse_dtype(dtype)
    convert(open_checkpoint(str(folder)), tmp_path / "new", "safetensors", kind, lambda done, total: None)
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    index = tmp_path / "new" / "model.safetensors.index.json"
    assert (len(files) > 3) == index.exists() == (shard == 50_000)
    if index.exists():
        read = json.loads(index.read_text())
        assert set(read["weight_map"].values()) == {file.name for file in files}
        assert read["metadata"]["total_size"] == sum(t.numel() for t in state(model).values()) * kind.itemsize
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert theirs.dtype == kind
    checkpoint = open_checkpoint(str(tmp_path / "new"))
    assert checkpoint.config.dtype == dtype
    for name, tensor in state(model).items():
        assert torch.equal(checkpoint.tensor(name), tensor.to(kind)), name
        assert torch.equal(theirs.state_dict()[name], tensor.to(kind)), name
    assert torch.equal(logits(tmp_path / "new", dtype), logits(folder, dtype))


@pytest.mark.parametrize("form", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_format_converts_to_gptfast(form, dtype, models, tmp_path):
    model, _, expected = models["llama"]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    SOURCES[form](model, source)
    calls: list[tuple[int, int]] = []
    convert(open_checkpoint(str(source)), target, "gptfast", dtype, lambda *call: calls.append(call))
    read = torch.load(target / "model.pth", weights_only=True)
    wanted = gptfast_tensors(model)
    assert calls == [(done, len(wanted)) for done in range(1, len(wanted) + 1)]
    assert read.keys() == wanted.keys()
    assert all(torch.equal(read[name], wanted[name].to(dtype)) for name in wanted)
    if dtype == torch.float32:
        assert torch.equal(logits(target), expected)


@pytest.mark.parametrize("family", PLAIN)
def test_gptfast_and_back_is_the_same_model(family, models, tmp_path):
    _, folder, expected = models[family]
    convert(open_checkpoint(str(folder)), tmp_path / "pth", "gptfast", torch.float32, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "pth"), expected)
    there = open_checkpoint(str(tmp_path / "pth"))
    convert(there, tmp_path / "back", "safetensors", torch.float32, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "back"), expected)


def test_refusals_are_one_sentence(models, tmp_path):
    _, folder, _ = models["llama"]
    quiet = lambda done, total: None  # noqa: E731
    with pytest.raises(UserError, match=r"exists already; name a new folder\.$"):
        convert(open_checkpoint(str(folder)), tmp_path, "safetensors", torch.float32, quiet)
    with pytest.raises(UserError, match=r"must be one of safetensors, .*, q4_1, not 'onnx'\.$"):
        convert(open_checkpoint(str(folder)), tmp_path / "new", "onnx", torch.float32, quiet)
    for family in ("llama-biased", "qwen3"):
        with pytest.raises(
            UserError, match=r"has biases, q and k norms, .*, which gpt-fast's model\.pth cannot hold\.$"
        ):
            convert(open_checkpoint(str(models[family][1])), tmp_path / "new", "gptfast", torch.float32, quiet)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written: Not a directory\.$"):
        convert(open_checkpoint(str(folder)), tmp_path / "file" / "new", "safetensors", torch.float32, quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("form", conversion.FORMATS)
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing(form, stop, models, tmp_path):
    folder = models["deepseek-v3" if form == "deepseek" else "llama"][1]

    def progress(done: int, total: int) -> None:
        if done == total // 2:
            raise stop

    with pytest.raises(stop):
        convert(open_checkpoint(str(folder)), tmp_path / "new", form, torch.float32, progress)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_what_is_no_whole_model_is_not_converted(form, models, tmp_path):
    model, _, _ = models["llama"]
    tensors = state(model)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    model.config.save_pretrained(tmp_path / "source")
    torch.save(tensors, tmp_path / "source" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        convert(open_checkpoint(str(tmp_path / "source")), tmp_path / "new", form, torch.float32, lambda *_: None)
    assert not (tmp_path / "new").exists()
