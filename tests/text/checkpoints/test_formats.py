"""The same weights in every format are the same model."""

import json
from pathlib import Path

import pytest
import torch
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.checkpoints.written_formats import (
    FORMATS,
    PLAIN,
    PROMPT,
    gptfast_tensors,
    logits,
    state,
    write_sharded,
    write_sharded_bin,
)
from text.families import reference_logits
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from genwright import LLM
from genwright.errors import GenwrightWarning, UserError
from genwright.text.architectures.registry import read_config
from genwright.text.checkpoints.gptfast import GptFast
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *((family, form) for family in PLAIN for form in FORMATS if (family, form) != ("llama-3.2", "gguf")),
        *(
            (family, form)
            for family in ("qwen3", "llama-biased", "opt-350m")
            for form in FORMATS
            if "bin" in form or "saf" in form
        ),
        ("qwen3", "gguf"),
    ],
)
def test_every_format_of_the_same_weights_has_the_same_logits(family, form, models, tmp_path):
    model, _, expected = models[family]
    FORMATS[form](model, tmp_path)
    if (family, form) == ("mistral", "gguf"):  # llama.cpp's converter does not write the window of that architecture
        path = write_gguf(tmp_path / "model.gguf", model, llama__attention__sliding_window=model.config.sliding_window)
    else:
        path = tmp_path
    assert torch.equal(logits(path), expected)


def test_a_file_of_the_folder_stands_for_the_folder(models, tmp_path):
    model, folder, expected = models["llama"]
    assert torch.equal(logits(folder / "model.safetensors"), expected)
    write_gguf(tmp_path / "some name", model)
    assert torch.equal(logits(tmp_path / "some name"), expected)


@pytest.mark.parametrize("write", [write_sharded, write_sharded_bin])
def test_shards_are_opened_when_a_tensor_of_theirs_is_asked_for(write, models, tmp_path):
    model, _, _ = models["llama"]
    write(model, tmp_path)
    checkpoint = HuggingFace(tmp_path)
    assert sorted(checkpoint.names()) == sorted(state(model)) and not checkpoint._files
    checkpoint.tensor("model.norm.weight")
    checkpoint.shape("model.norm.weight")
    assert len(checkpoint._files) == 1


def mixtral_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """gpt-fast's Mixtral: each weight of all experts in one tensor [experts, rows, columns]."""
    theirs, tensors = model.state_dict(), gptfast_tensors(model)
    for layer in range(model.config.num_hidden_layers):
        of, to = f"model.layers.{layer}.mlp.", f"layers.{layer}.block_sparse_moe."
        gate, up = theirs[f"{of}experts.gate_up_proj"].chunk(2, dim=1)
        tensors[f"{to}gate.weight"] = theirs[f"{of}gate.weight"]
        experts = {"w1": gate, "w2": theirs[f"{of}experts.down_proj"], "w3": up}
        tensors |= {f"{to}cond_ffn.{name}": tensor for name, tensor in experts.items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_gptfasts_mixtral_is_the_same_model(models, tmp_path):
    model, _, expected = models["mixtral"]
    model.config.save_pretrained(tmp_path)
    tensors = mixtral_tensors(model)
    torch.save(tensors, tmp_path / "model.pth")
    assert torch.equal(logits(tmp_path), expected)
    shape = {key: value for key, value in model.config.to_dict().items() if value is not None}
    for experts, fits in ((6, True), (7, False)):
        cfg = read_config({**shape, "num_local_experts": experts}, "config.json")
        assert GptFast(tmp_path / "model.pth")._fits(cfg) is fits
    packed = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if "tok_" in name or "norm" in name or "gate" in name:
            continue
        scales = (tensor.abs().amax(-1) / 127).bfloat16()
        packed[name] = (tensor / scales[..., None]).round().to(torch.int8)
        packed[f"{stem}.scales{kind[1] if kind.startswith('w') and kind != 'weight' else ''}"] = scales
        tensors[name] = packed[name] * scales[..., None].float()
    torch.save(tensors, tmp_path / "model.pth")
    expected = logits(tmp_path)
    torch.save({**tensors, **packed}, tmp_path / "model.pth")
    form = open_checkpoint(str(tmp_path)).format("model.layers.0.block_sparse_moe.experts.5.w2.weight")
    assert form is not None and form.kind == "int8"
    assert (logits(tmp_path) - expected).norm() / expected.norm() < 1e-4


def without_config(model: str, folder: Path) -> Path:
    """gpt-fast's file alone, as gpt-fast's own scripts leave it."""
    convert(open_checkpoint(model), folder, "gptfast", torch.float32, lambda done, total: None)
    (folder / "config.json").unlink()
    return folder / "model.pth"


def test_without_a_config_the_one_fitting_shape_is_taken(tmp_path, capsys):
    path = without_config("random:stories15M", tmp_path / "anything")
    cfg = GptFast(path).config
    assert (cfg.layers, cfg.heads, cfg.max_context) == (6, 6, 256)
    assert capsys.readouterr().err == ""
    expected = LLM("random:stories15M", dtype="float32").logits(PROMPT)
    assert torch.equal(logits(path), expected)
    assert torch.equal(logits(path.parent, arch="stories15M"), expected)
    with pytest.raises(UserError, match=r"'model\.embed_tokens\.weight' of shape \[32000, 288\]; .* \[32000, 768\]"):
        logits(path, arch="stories110M")
    with pytest.raises(UserError, match=r"no model shape named 'stories16M'; did you mean stories15m\?$"):
        logits(path, arch="stories16M")
    path = without_config("random:stories15M,layers=2", tmp_path / "stories15M")
    with pytest.raises(UserError, match=r"fits none of the known shapes; put its config\.json beside it"):
        logits(path)


@pytest.mark.parametrize(
    ("folder", "chosen", "theta"),
    [
        ("Llama-2-7b-chat-hf", "llama-2-7b", 1e4),
        ("7B", "llama-2-7b", 1e4),
        ("llama-7b", "llama-7b", 1e4),
        ("codellama/CodeLlama-7b-Python-hf", "codellama-7b-python", 1e6),
        ("mine", None, None),
    ],
)
def test_among_several_fitting_shapes_the_folder_chooses(folder, chosen, theta, tmp_path):
    zero = torch.zeros(1)  # seen as any shape: the file stays small
    shapes = {"tok_embeddings": (32000, 4096), "layers.0.attention.wqkv": (3 * 4096, 4096)}
    shapes |= {"layers.0.feed_forward.w1": (11008, 4096), "layers.31.ffn_norm": (4096,)}
    home = tmp_path / folder
    home.mkdir(parents=True)
    torch.save({f"{name}.weight": zero.expand(shape) for name, shape in shapes.items()}, home / "model.pth")
    if chosen is None:
        sentence = r"fits llama-7b, llama-2-7b, codellama-7b-python; choose with arch \(--arch NAME\)\.$"
        with pytest.raises(UserError, match=sentence):
            open_checkpoint(str(home))
        assert GptFast(home / "model.pth", "llama-7b").config.max_context == 2048
        return
    with pytest.warns(GenwrightWarning, match=f"is taken for {chosen} because of its folder's name"):
        cfg = open_checkpoint(str(home)).config
    assert (cfg.layers, cfg.rope.theta) == (32, theta)


def test_llama3_scaling_survives_the_way_through_gguf(tmp_path):
    """GGUF keeps one factor per frequency; the written folder has the settings that they came from."""
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = tiny_model("llama", rope_parameters=scaling, tie_word_embeddings=True, max_position_embeddings=131072)
    plain = 1.0 / 500000.0 ** (torch.arange(0, 16, 2) / 16)
    model.config.rope_factors = (plain / ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]).tolist()
    convert(
        open_checkpoint(str(write_gguf(tmp_path / "tiny.gguf", model))),
        tmp_path / "new",
        "safetensors",
        torch.float32,
        lambda done, total: None,
    )
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    assert written["rope_scaling"] == {key: value for key, value in scaling.items() if key != "rope_theta"}
    assert written["rope_theta"] == 500000.0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    prompt = list(range(40))
    torch.testing.assert_close(reference_logits(theirs, prompt), reference_logits(model, prompt))
    ours = LLM(tmp_path / "new", dtype="float32").logits(prompt)
    torch.testing.assert_close(ours, reference_logits(model, prompt), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        (
            "attention.wo.weight",
            torch.zeros(64, 64, dtype=torch.int8),
            r"stores '.*o_proj\.weight' as int8; weights must be float16, bfloat16, float32 or float64",
        ),
        ("attention.wo.weight", torch.eye(64).to_sparse(), r"stores '.*o_proj\.weight' as float32 sparse_coo; "),
        ("attention.wqkv.weight", torch.zeros(192, 64), r"'.*v_proj\.weight' of shape \[96, 64\]; .* \[32, 64\]"),
        ("attention.wqkv.weight", torch.zeros(()), r"'.*q_proj\.weight' of shape \[\]; .* \[64, 64\]"),
        ("ffn_norm.weight", "text", r"no tensor '.*0\.post_attention_layernorm\.weight'"),
    ],
)
def test_gptfast_tensors_that_are_not_the_models(name, tensor, sentence, models, tmp_path):
    model, _, _ = models["llama"]
    model.config.save_pretrained(tmp_path)
    odd = {"layers.x.y": torch.zeros(1), "layers.99999999999.attention.wo.weight": torch.zeros(1), 7: torch.zeros(1)}
    torch.save({**gptfast_tensors(model), **odd, f"layers.0.{name}": tensor}, tmp_path / "model.pth")
    with pytest.raises(UserError, match=sentence):
        logits(tmp_path)
