"""ModelConfig against transformers' own configurations, and a one-sentence error for each mistake."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from text.families import FAMILIES, config_class

from genwright.errors import GenwrightWarning, UserError
from genwright.text.architectures.registry import CLASSES, SHAPES, architecture, named_shape, read_config
from genwright.text.config import ModelConfig
from genwright.text.config_file import read_json

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


def config(**changes: Any) -> dict[str, Any]:
    """A whole configuration with some fields changed; None takes one away. Another class comes without a type."""
    changes = {"model_type": None, **changes} if "architectures" in changes else changes
    return {key: value for key, value in {**named_shape("llama-3-8b"), **changes}.items() if value is not None}


def read(**changes: Any) -> ModelConfig:
    return read_config(config(**changes), "config.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_as_transformers_means_it(family: str) -> None:
    kind, changes = FAMILIES[family]
    theirs = config_class(kind)(architectures=[f"{kind}ForCausalLM"], eos_token_id=2, **changes)
    ours = read_config(json.loads(theirs.to_json_string(use_diff=False)), family)
    assert (ours.dim, ours.layers, ours.heads) == (
        theirs.hidden_size,
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
    )
    assert (ours.vocab_size, ours.max_context) == (theirs.vocab_size, theirs.max_position_embeddings)
    assert (ours.tied, ours.eos_ids) == (theirs.tie_word_embeddings, (2,))
    if ours.opt is not None:
        assert (ours.ffn_dim, ours.opt.embed_dim) == (theirs.ffn_dim, theirs.word_embed_proj_dim)
        return
    assert ours.ffn_dim == theirs.intermediate_size
    assert ours.mla or ours.kv_heads == theirs.num_key_value_heads
    assert ours.rope_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.norm_eps == theirs.rms_norm_eps
    rope = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
    assert (ours.rope.theta, ours.rope.kind) == (rope["rope_theta"], rope["rope_type"])
    sliding = [kind == "sliding_attention" for kind in getattr(theirs, "layer_types", None) or []]
    if kind == "Mistral":
        sliding = [True] * theirs.num_hidden_layers
    assert ours.windows == tuple(
        theirs.sliding_window if slides else None for slides in sliding or [False] * ours.layers
    )


# In billions, as published; DeepSeek-V3's 671 are without the multi-token-prediction layer.
PARAMETERS = {"llama-2-7b": 6.7, "llama-3.1-405b": 405, "opt-125m": 0.125, "opt-350m": 0.33, "opt-13b": 12.9}
PARAMETERS |= {"opt-175b": 175, "galactica-30b": 30, "mixtral-8x7b": 46.7, "mixtral-8x22b": 141}
PARAMETERS |= {"qwen1.5-moe-a2.7b": 14.3, "qwen2-57b-a14b": 57.4, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235}
PARAMETERS |= {"gemma-3-270m": 0.268, "gemma-3-1b": 1.0, "gemma-3-4b": 3.88, "gemma-3-12b": 11.77, "gemma-3-27b": 27.0}
PARAMETERS |= {"deepseek-v2-lite": 15.7, "deepseek-v2": 236, "deepseek-v3": 671}


@pytest.mark.parametrize("name", PARAMETERS)
def test_named_shapes_have_the_published_number_of_parameters(name: str) -> None:
    cfg = read_config(named_shape(name), name)
    count = sum(math.prod(source.shape) for source in architecture(cfg).weight_map(cfg).tensors())
    assert count / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_every_named_shape_is_a_configuration(name: str) -> None:
    assert read_config(named_shape(name), name).layers > 0


@pytest.mark.parametrize(
    ("alias", "dim", "layers", "kv_heads"),
    [
        ("7B", 4096, 32, 32),
        ("13B", 5120, 40, 40),
        ("30B", 6656, 60, 52),
        ("34B", 8192, 48, 8),
        ("70B", 8192, 80, 8),
        ("Mistral-7B", 4096, 32, 8),
        ("CodeLlama-7b-Python-hf", 4096, 32, 32),
        ("stories15M", 288, 6, 6),
        ("stories110M", 768, 12, 12),
        ("llama-3-8b", 4096, 32, 8),
        ("llama-3-70b", 8192, 80, 8),
        ("llama-3.1-8b", 4096, 32, 8),
        ("llama-3.1-70b", 8192, 80, 8),
        ("llama-3.1-405b", 16384, 126, 8),
    ],
)
def test_gptfasts_names_are_known(alias: str, dim: int, layers: int, kv_heads: int) -> None:
    cfg = read_config(named_shape(alias), alias)
    assert (cfg.dim, cfg.layers, cfg.kv_heads) == (dim, layers, kv_heads)


def test_old_and_new_ways_to_write_rope_are_one() -> None:
    old = read(rope_theta=5e5, rope_scaling=LLAMA3)
    assert old == read(rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == read(rope_theta=5e5, rope_scaling={**LLAMA3, "rope_type": None, "type": "llama3"})
    assert old.rope.settings == {key: value for key, value in LLAMA3.items() if key != "rope_type"}
    assert read(rope_theta=None).rope.theta == 10000.0


def test_yarns_original_context_is_looked_up_where_it_may_be() -> None:
    def original(**changes: Any) -> float:
        return read(**changes).rope.settings["original_max_position_embeddings"]

    assert original(rope_scaling=YARN, max_position_embeddings=1024) == 1024
    assert original(rope_scaling=YARN, original_max_position_embeddings=512) == 512
    assert original(rope_scaling={**YARN, "original_max_position_embeddings": 256}) == 256
    both = {"rope_scaling": {**YARN, "original_max_position_embeddings": 256}, "original_max_position_embeddings": 512}
    assert original(**both) == 512  # as in transformers


def test_an_unknown_setting_of_rope_is_told() -> None:
    with pytest.warns(
        GenwrightWarning, match=r"^config\.json \(rope_scaling\) has the unknown setting 'alpha', which is ignored"
    ):
        read(rope_scaling={**YARN, "alpha": 1000.0})


def test_scaling_that_is_added_to_a_new_configuration_is_read() -> None:
    """Model cards say to add `rope_scaling`, and transformers 5 writes `rope_parameters`."""
    cfg = read(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}, rope_scaling=YARN)
    assert (cfg.rope.kind, cfg.rope.theta) == ("yarn", 5e5)


def test_scaling_tells_how_far_the_context_reaches() -> None:
    def reach(**changes: Any) -> tuple[int, int]:
        cfg = read(max_position_embeddings=1000, **changes)
        return cfg.max_context, cfg.longest_context

    assert reach() == (1000, 1000)
    assert reach(rope_scaling={"type": "dynamic", "factor": 4.0}) == (1000, 4000)
    assert reach(rope_scaling={"type": "linear", "factor": 0.5}) == (1000, 1000)
    assert reach(rope_scaling={**YARN, "original_max_position_embeddings": 500}) == (1000, 2000)


WRONG: dict[str, dict[str, Any]] = {
    "has the unknown architecture 'GPT2LMHeadModel'; known are " + ", ".join(CLASSES): {
        "architectures": ["GPT2LMHeadModel"]
    },
    "has the unknown architecture 'gpt2'; known are LlamaForCausalLM": {"architectures": None, "model_type": "gpt2"},
    "has the unknown architecture ['LlamaForCausalLM']": {"architectures": [["LlamaForCausalLM"]]},
    "'hidden_size' must be a whole number between 1 and 1048576, not '4096'": {"hidden_size": "4096"},
    "'hidden_size' must be a whole number between 1 and 1048576, not True": {"hidden_size": True},
    "'num_hidden_layers' must be a whole number between 1 and 4096, not -1": {"num_hidden_layers": -1},
    "'num_hidden_layers' must be a whole number between 1 and 4096, not None": {"num_hidden_layers": None},
    "'vocab_size' must be a whole number between 1 and 16777216, not 1e+300": {"vocab_size": 1e300},
    "'rms_norm_eps' must be a positive number, not nan": {"rms_norm_eps": float("nan")},
    "'rms_norm_eps' must be a positive number, not inf": {"rms_norm_eps": float("inf")},
    "'rope_theta' must be a number above 1, not 0.5": {"rope_theta": 0.5},
    "'rope_theta' must be a positive number, not 1000000000000": {"rope_theta": 10**400},
    "hidden_size of 4098, which is not a multiple of its 32 heads": {"hidden_size": 4098},
    "heads of 127 channels; rotary embeddings need an even number": {"head_dim": 127},
    "'num_key_value_heads' must be a divisor of the 32 attention heads, not 5": {"num_key_value_heads": 5},
    "activation 'gelu'; this architecture supports only silu": {"hidden_act": "gelu"},
    "'tie_word_embeddings' must be true or false, not 1": {"tie_word_embeddings": 1},
    "'eos_token_id' must be a token id or a list of them, not [2, -1]": {"eos_token_id": [2, -1]},
    "'torch_dtype' must be float32, float16 or bfloat16, not 'int8'": {"torch_dtype": "int8"},
    "'rope_scaling' must be an object, not [1]": {"rope_scaling": [1]},
    "RoPE scaling 'ntk'; known are default, linear, dynamic, llama3, yarn": {"rope_scaling": {"rope_type": "ntk"}},
    "(rope_scaling): 'long_factor' must be 64 positive numbers": {
        "rope_scaling": {"type": "su", "short_factor": [1] * 64, "long_factor": [1] * 63}
    },
    "'truncate' must be true or false, not 0": {"rope_scaling": {**YARN, "truncate": 0}},
    "'partial_rotary_factor' must be 1, because all channels of a head rotate in this architecture": {
        "partial_rotary_factor": 0.5
    },
    "(rope_parameters): 'full_attention' must be a single value": {"rope_parameters": {"full_attention": YARN}},
    "heads of 2 channels; dynamic RoPE scaling needs at least 4": {
        "head_dim": 2,
        "rope_scaling": {"rope_type": "dynamic", "factor": 2},
    },
    "(rope_scaling): 'factor' must be a positive number, not None": {"rope_scaling": {"type": "linear"}},
    "'low_freq_factor' must be a number below its high_freq_factor": {
        "rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}
    },
    "'original_max_position_embeddings' must be a positive number, not 'x'": {
        "rope_scaling": YARN,
        "original_max_position_embeddings": "x",
    },
    "'beta_fast' must be a positive number, not 1e-300": {"rope_scaling": {**YARN, "beta_fast": 1e-300}},
    "'factors' must be 64 positive numbers, one for every two channels": {
        "rope_scaling": {"rope_type": "factors", "factors": [1.0] * 63}
    },
    "'layer_types' must be full_attention or sliding_attention for each layer": {
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 64,
        "layer_types": [[]] * 32,
    },
    "(quantization_config): 'quant_method' must be one of fp8, awq, gptq, compressed-tensors, bitsandbytes, torchao": {
        "quantization_config": {"quant_method": "quip"}
    },
    "'weight_block_size' must be [128, 128], the only supported size, not None": {
        "quantization_config": {"quant_method": "fp8"}
    },
    "'num_local_experts' must be a whole number between 1 and 4096": {"architectures": ["MixtralForCausalLM"]},
    "'num_experts_per_tok' must be a whole number between 1 and 4, not 5": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 5,
    },
    "'kv_lora_rank' must be a whole number": {"architectures": ["DeepseekV3ForCausalLM"]},
    "'scoring_func' must be sigmoid, the only one of this architecture, not 'softmax'": {
        **named_shape("deepseek-v3"),
        "scoring_func": "softmax",
    },
    "'topk_method' must be greedy or group_limited_greedy, not 'noaux_tc'": {
        **named_shape("deepseek-v2"),
        "topk_method": "noaux_tc",
    },
    "'n_group' must be a number of equal groups of the 256 experts, not 7": {
        **named_shape("deepseek-v3"),
        "n_group": 7,
    },
    "'num_experts_per_tok' must be a whole number between 1 and 32, not 33": {
        **named_shape("deepseek-v3"),
        "topk_group": 1,
        "num_experts_per_tok": 33,
    },
    "has biases, which are not supported: no published": {**named_shape("deepseek-v3"), "attention_bias": True},
    "'activation_function' must be relu or gelu, not 'tanh'": {
        **named_shape("opt-125m"),
        "activation_function": "tanh",
    },
    "hidden_size of 768, which is not a multiple of its 7 heads": {**named_shape("opt-125m"), "num_attention_heads": 7},
    "'sliding_window' must be a whole number between 1": {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read(**WRONG[sentence])
    assert sentence in str(error.value)
    assert str(error.value).startswith(("config.json ", "config.json: ")) and str(error.value).endswith(".")
    assert len(str(error.value).splitlines()) == 1


def test_values_of_any_size_are_shown_short() -> None:
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    for value in (deep, "x" * 100_000, list(range(100_000)), {str(i): i for i in range(1000)}):
        with pytest.raises(UserError) as error:
            read(hidden_size=value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is not valid JSON: Expecting value"),
        (b"{", "is not valid JSON: Expecting property name"),
        (b"\xff{}", "is not UTF-8 text: byte 0 is invalid"),
        (b"[" * 100_000, "is not valid JSON: maximum recursion depth exceeded"),
        (b'{"x": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
        (b"[1]", "must hold a JSON object, not a list"),
    ],
)
def test_files_that_are_no_json_object(text: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(UserError) as error:
        read_json(tmp_path / "config.json")
    assert sentence in str(error.value) and len(str(error.value).splitlines()) == 1


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory\.$"):
        read_json(tmp_path / "config.json")
