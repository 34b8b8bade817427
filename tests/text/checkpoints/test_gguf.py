"""GGUF files of llama.cpp's layout read back as the transformers models that they were made of."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from text.checkpoints.tiny_gguf import KV_HEADS, permute, tiny_model, write_gguf
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from genwright.errors import UserError
from genwright.text.architectures.class_defaults import with_defaults
from genwright.text.architectures.registry import read_config
from genwright.text.checkpoints.gguf import GGUF
from genwright.text.checkpoints.open import open_checkpoint

MODELS = {
    "llama": ("llama", {}),
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("llama", {"head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_file_is_the_model_it_was_made_of(model: str, tmp_path: Path) -> None:
    family, changes = MODELS[model]
    original = tiny_model(family, **changes)
    checkpoint = GGUF(write_gguf(tmp_path / "tiny.gguf", original))
    state = original.state_dict()
    if original.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert sorted(checkpoint.names()) == sorted(state)
    for name, tensor in state.items():
        assert checkpoint.shape(name) == tuple(tensor.shape), name
        assert torch.equal(checkpoint.tensor(name), tensor), name
        assert torch.equal(checkpoint.tensor(name, torch.bfloat16), tensor.bfloat16()), name
    expected = read_config(original.config.to_dict(), "transformers")
    assert replace(checkpoint.config, rope=expected.rope) == expected
    assert checkpoint.config.rope.theta == expected.rope.theta
    assert checkpoint.config.rope.kind == expected.rope.kind == "default"
    assert checkpoint.config.eos_ids == (2, 3)  # 3 is a control token, <|eot_id|>


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_transformers_reads_the_same_weights(family: str, kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(family, head_dim=16), kind)
    checkpoint = GGUF(path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name, torch.float32), theirs[name]), name


@pytest.mark.parametrize(
    ("kind", "stored", "config"),
    [
        ("F32", torch.float32, "float32"),
        ("F16", torch.float16, "float16"),
        ("BF16", torch.bfloat16, "bfloat16"),
        ("Q8_0", torch.float32, "bfloat16"),
    ],
)
def test_without_a_dtype_floats_stay_as_stored(kind: str, stored: torch.dtype, config: str, tmp_path: Path) -> None:
    checkpoint = GGUF(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), kind))
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").dtype == stored
    assert checkpoint.tensor("model.norm.weight").dtype == torch.float32
    assert checkpoint.config.dtype == config


def test_writing_into_a_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    before = path.read_bytes()
    GGUF(path).tensor("model.norm.weight").zero_()
    assert path.read_bytes() == before


def test_llama3_scaling_comes_as_a_factor_per_frequency(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = tiny_model("llama", rope_parameters=scaling)
    plain = 1.0 / 500000.0 ** (torch.arange(0, 16, 2) / 16)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
    model.config.rope_factors = (plain / scaled).tolist()
    checkpoint = GGUF(write_gguf(tmp_path / "tiny.gguf", model))
    rope = checkpoint.config.rope
    assert (rope.theta, rope.kind) == (500000.0, "factors")
    assert len(set(rope.settings["factors"])) > 2
    torch.testing.assert_close(plain / torch.tensor(rope.settings["factors"]), scaled)
    assert "rope_freqs.weight" not in checkpoint.names()


def test_other_rope_scalings_are_told_in_hugging_face_words(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    linear = {"qwen2__rope__scaling__type": "linear", "qwen2__rope__scaling__factor": 4.0}
    assert GGUF(write_gguf(tmp_path / "linear.gguf", model, **linear)).hf_config["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 4.0,
    }
    yarn = {
        "qwen2__rope__scaling__type": "yarn",
        "qwen2__rope__scaling__factor": 4.0,
        "qwen2__rope__scaling__original_context_length": 32,
        "qwen2__rope__scaling__yarn_beta_fast": 16.0,
    }
    assert GGUF(write_gguf(tmp_path / "yarn.gguf", model, **yarn)).hf_config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
    }
    none = {"qwen2__rope__scaling__type": "none", "qwen2__rope__scaling__factor": 4.0}
    assert GGUF(write_gguf(tmp_path / "none.gguf", model, **none)).hf_config["rope_scaling"] is None


def test_longrope_comes_as_two_lists_of_factors(tmp_path: Path) -> None:
    factors = {"short": torch.arange(1.0, 9), "long": torch.arange(2.0, 10)}
    extra = {f"rope_factors_{length}.weight": each for length, each in factors.items()}
    scaling = {"llama__rope__scaling__type": "longrope", "llama__rope__scaling__attn_factor": 1.25}
    scaling["llama__rope__scaling__original_context_length"] = 32
    checkpoint = GGUF(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), extra=extra, **scaling))
    assert checkpoint.config.rope.kind == "longrope"
    assert checkpoint.config.rope.settings == {
        "short_factor": [1.0 + i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 32,
        "attention_factor": 1.25,
        "factor": 4.0,
    }
    assert not any("rope" in name for name in checkpoint.names())


def test_a_sliding_window_makes_a_mistral(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("mistral"), llama__attention__sliding_window=64)
    assert GGUF(path).config.windows == (64, 64)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"split__count": 3}, "one of 3 parts of a split model and must have a name such as NAME-00001-of-00003"),
        ({"llama__expert_count": 8}, "'num_experts_per_tok' must be a whole number between 1 and 8, not None"),
        ({"llama__attention__key_length": 8}, "attention.key_length"),
        ({"llama__rope__scaling__type": "longrope"}, "'short_factor' must be 8 positive numbers"),
    ],
)
def test_what_is_not_supported_is_said(metadata: dict[str, int | str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        GGUF(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), **metadata))


def write_parts(folder: Path) -> tuple[Path, list[Path]]:
    """A whole file, and the same in three parts as llama-gguf-split writes them: metadata in the first alone."""
    whole = write_gguf(folder / "whole.gguf", tiny_model("llama"))
    reader, parts = gguf.GGUFReader(whole), []
    for number in range(3):
        path = folder / f"tiny-{number + 1:05}-of-00003.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for field in reader.fields.values() if number == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                kinds = field.types
                writer.add_key_value(field.name, field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::3]:
            writer.add_tensor(tensor.name, tensor.data.copy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(path)
    return whole, parts


def test_any_part_of_a_split_model_opens_all(tmp_path: Path) -> None:
    whole, parts = write_parts(tmp_path)
    expected = GGUF(whole)
    whole.unlink()
    for path in (*parts, tmp_path):
        checkpoint = open_checkpoint(str(path))
        assert checkpoint.config == expected.config and sorted(checkpoint.names()) == sorted(expected.names())
        for name in expected.names():
            assert torch.equal(checkpoint.tensor(name), expected.tensor(name)), name
    assert {checkpoint.where(name) for name in checkpoint.names()} == set(map(str, parts))
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(UserError, match=r"tiny-00002-of-00003\.gguf is not part 2 of 3 by its own metadata"):
        GGUF(parts[0])
    parts[1].unlink()
    with pytest.raises(UserError, match=r"lacks tiny-00002-of-00003\.gguf, one of the 3 parts of the model\.$"):
        GGUF(parts[2])


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    path.write_bytes(path.read_bytes().replace(b"llama", b"gem\nx"))
    with pytest.raises(
        UserError, match=r"'gem\\nx'; known are llama, qwen2, qwen3, qwen2moe, qwen3moe, deepseek2, gemma3\.$"
    ):
        GGUF(path)


def test_a_missing_setting_or_embedding_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"llama.block_count", b"llama.block_c0unt"))
    with pytest.raises(UserError, match=r"lacks llama\.block_count"):
        GGUF(path)
    path.write_bytes(whole.replace(b"token_embd", b"token_ambd"))
    with pytest.raises(UserError, match=r"lacks the tensor token_embd\.weight"):
        GGUF(path)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_file_without_head_dimensions_means_the_same_as_a_config_json(family: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(family, head_dim=16))
    data = path.read_bytes()
    for key in (b"attention.key_length", b"attention.value_length", b"rope.dimension_count"):
        data = data.replace(key, key.replace(b"n", b"m"))
    path.write_bytes(data)
    checkpoint = GGUF(path)
    assert checkpoint.config.head_dim == 16
    assert read_config(with_defaults(checkpoint.hf_config), "as a config.json") == checkpoint.config


def test_unknown_tensors_keep_their_names(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_op"))
    assert "blk.1.ffn_op.weight" in GGUF(path).names()


def test_rows_that_are_no_whole_heads_are_one_sentence(tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_gguf(tmp_path / "tiny.gguf", model, llama__attention__key_length=48, llama__attention__value_length=48)
    data = path.read_bytes()
    at = data.index(b"llama.rope.dimension_count") + len(b"llama.rope.dimension_count") + 4
    path.write_bytes(data[:at] + (48).to_bytes(4, "little") + data[at + 4 :])
    checkpoint = GGUF(path)
    with pytest.raises(
        UserError, match=rf"{KV_HEADS * 16} rows in blk\.0\.attn_k\.weight, not a multiple of the head dimension 48"
    ):
        checkpoint.tensor("model.layers.0.self_attn.k_proj.weight")


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    def anonymous_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) << 10

    model = tiny_model("llama", vocab_size=1 << 17)  # two matrices of 32 MB
    path = write_gguf(tmp_path / "large.gguf", model)
    before = anonymous_bytes()
    checkpoint = GGUF(path)
    tensors = [checkpoint.tensor(name) for name in checkpoint.names()]
    assert all(tensor.isfinite().all() for whole in tensors for tensor in whole.split(1024))
    assert anonymous_bytes() - before < 16 << 20


def test_smollm2_equals_the_gguf_package(smollm2: Path) -> None:
    checkpoint, reader = GGUF(smollm2), gguf.GGUFReader(smollm2)
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == checkpoint.config.vocab_size == 49152
    assert checkpoint.tokenizer() is not None and checkpoint.config.eos_ids[0] == 2
    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    assert len(checkpoint.names()) == len(stored)
    for name in checkpoint.names():
        theirs = stored[names.get_name(name, try_suffixes=(".weight",))]
        tensor = checkpoint.tensor(name)
        if "q_proj" in name or "k_proj" in name:
            tensor = permute(tensor, 9 if "q_proj" in name else 3)
        assert np.array_equal(tensor.numpy(), gguf.quants.dequantize(theirs.data, theirs.tensor_type)), name
