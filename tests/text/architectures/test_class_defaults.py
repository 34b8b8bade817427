"""What a config.json omits is what transformers' configuration class has, whichever field it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from text.families import FAMILIES, SIZES, config_class, make, reference_logits
from transformers import AutoConfig

from genwright import LLM
from genwright.errors import UserError
from genwright.text.architectures.class_defaults import with_defaults
from genwright.text.architectures.registry import MODEL_TYPES, SHAPES, named_shape, read_config
from genwright.text.config import ModelConfig

# Ends come from generation_config.json and the tokenizer, and transformers has no multi-token prediction.
NOT_READ = {"model_type", "eos_token_id", "num_nextn_predict_layers"}


def old_style(config: dict[str, Any]) -> dict[str, Any]:
    """As transformers 4 wrote it."""
    rope = config["rope_parameters"]
    whole = rope.get("full_attention", rope)
    fields = {"rope_theta": whole["rope_theta"], "torch_dtype": config["dtype"]}
    if whole["rope_type"] != "default":
        fields["rope_scaling"] = {key: value for key, value in whole.items() if key != "rope_theta"}
    if whole is not rope:
        fields["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    return {**{key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}, **fields}


def shortened(family: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A whole config.json without each of its fields in turn."""
    kind, changes = FAMILIES[family]
    config = config_class(kind)(architectures=[f"{kind}ForCausalLM"], dtype="float32", **{**SIZES, **changes})
    new = json.loads(config.to_json_string(use_diff=False))
    for style in (new, old_style(new)) if "rope_parameters" in new else (new,):
        for key in style.keys() - NOT_READ:
            yield key, {name: value for name, value in style.items() if name != key}


def understood(config: dict[str, Any]) -> ModelConfig | None:
    try:
        return read_config(config, "config.json")
    except UserError:
        return None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_that_is_omitted_is_read_as_transformers_reads_it(family: str, tmp_path: Path) -> None:
    for key, config in shortened(family):
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            theirs = json.loads(AutoConfig.from_pretrained(tmp_path).to_json_string(use_diff=False))
        except Exception:  # its own checks, such as the number of `layer_types`
            continue
        theirs |= {"architectures": [f"{FAMILIES[family][0]}ForCausalLM"], "dtype": "float32"}
        assert understood(with_defaults(config)) == understood(theirs), key


@pytest.mark.parametrize("further", [{}, {"use_sliding_window": True}])
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_config_with_only_its_type_is_its_class(kind: str, further: dict[str, Any]) -> None:
    given = further | ({"num_experts_per_tok": 6} if kind == "deepseek_v2" else {})  # None in its class
    name = MODEL_TYPES[kind]
    whole = json.loads(config_class(name.removesuffix("ForCausalLM"))(**given).to_json_string(use_diff=False))
    theirs = {key: value for key, value in whole.items() if key not in NOT_READ} | {"architectures": [name], **given}
    assert read_config(with_defaults({"model_type": kind, **given}), "x") == read_config(theirs, "x")


@pytest.mark.parametrize("named", [{"architectures": "Gemma3ForCausalLM"}, {"architectures": ["Gemma3ForCausalLM"]}])
def test_defaults_are_those_of_the_class_that_is_read(named: dict[str, Any]) -> None:
    alone = read_config(with_defaults({"model_type": "gemma3_text"}), "x")
    assert read_config(with_defaults(named), "x") == alone
    assert (
        read_config(with_defaults({"architectures": ["LlamaForCausalLM"], "model_type": "gemma3_text"}), "x") == alone
    )
    with pytest.raises(UserError, match="unknown architecture 'Qwen2ForRewardModel'"):
        read_config(with_defaults({"architectures": ["Qwen2ForRewardModel"], "model_type": "qwen2"}), "x")


@pytest.mark.parametrize("key", ["layer_types", "rope_theta", "rope_local_base_freq", "rms_norm_eps"])
def test_a_field_that_is_null_is_read_as_one_that_is_omitted(key: str) -> None:
    config = with_defaults({"model_type": "gemma3_text"})
    assert read_config({**config, key: None}, "x") == read_config(config, "x")


def test_logits_of_a_folder_that_relies_on_defaults_equal_transformers(tmp_path: Path) -> None:
    theirs = make("gemma3", tmp_path, {"head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256})
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("head_dim", "num_key_value_heads", "query_pre_attn_scalar"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompt = list(range(3, 40))
    expected = reference_logits(theirs, prompt)
    assert (LLM(tmp_path, device="cpu").logits(prompt) - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_written_as_config_json_are_read_back(name: str) -> None:
    shape = named_shape(name)
    assert read_config(with_defaults(shape), name) == read_config(shape, name)


def test_a_field_that_is_null_or_has_another_name_is_not_omitted() -> None:
    assert with_defaults({"model_type": "mistral", "sliding_window": None})["sliding_window"] is None
    named = with_defaults({"architectures": ["Qwen3MoeForCausalLM"], "num_local_experts": 6})
    assert (named["num_local_experts"], named.get("num_experts"), named["num_experts_per_tok"]) == (6, None, 8)
