"""Ranks of gloo on a CPU give the tokens of one rank, with every architecture and weight format."""

import os
from pathlib import Path
from typing import Any

import pytest
from text.deepseek_folders import with_draft
from text.families import make
from text.rank_processes import in_ranks
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert

PROMPTS = [[1, 5, 9, 20, 3], [7, 8] * 20, [1, 2, 3], [4]]
PARAMS = [
    SamplingParams(max_new_tokens=8, ignore_eos=True),
    SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=0.9, seed=3, repetition_penalty=1.2),
    SamplingParams(max_new_tokens=7, ignore_eos=True, temperature=0.9, seed=4, top_k=5, logprobs=2),
    SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=1.0, seed=5, top_p=0.9, n=2, logit_bias={7: 2.0}),
]
SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "cpu_mem": 0.6}
# Heads, vocabulary, experts and groups of 32 columns that four ranks can divide.
_LLAMA = {"vocab_size": 200, "intermediate_size": 128, "head_dim": 32}
_EXPERTS = {"num_local_experts": 8, "n_routed_experts": 8, "moe_intermediate_size": 128, "n_group": 4}
EVEN: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "gemma3": _LLAMA,
    "mixtral": {**_LLAMA, **_EXPERTS},
    "deepseek-v3": {**_LLAMA, **_EXPERTS, "v_head_dim": 32},
    "opt": {"vocab_size": 200, "ffn_dim": 128, "hidden_size": 128, "word_embed_proj_dim": 128},
}
full_size = pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="many processes on few cores")


def answers(folder: Path, settings: dict[str, Any]) -> Any:
    """The tokens of a batch, and of a request alone that the prefix cache shortens."""
    with LLM(folder, **{**SETTINGS, **settings}) as llm:
        batch = [[result.ids, *(sample.ids for sample in result.samples)] for result in llm.generate(PROMPTS, PARAMS)]
        again = llm.generate([PROMPTS[1] + [9]], PARAMS[0])[0].ids
        return batch, again, list(llm.logits(PROMPTS[0]).shape)


def compare(folder: Path, ranks: int, **settings: Any) -> None:
    """Several ranks answer as one does."""
    plain = {name: value for name, value in settings.items() if name not in ("tp", "pp", "ep")}
    expected = in_ranks(1, folder, answers, folder, plain)
    assert len(expected[0]) == len(PROMPTS)
    assert in_ranks(ranks, folder, answers, folder, settings) == expected


@pytest.mark.parametrize("family", EVEN)
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path) -> None:
    make(family, tmp_path, EVEN[family])
    compare(tmp_path, 2, tp=2)


@pytest.mark.parametrize("family", ["llama-biased", "qwen2-moe", "deepseek-v2-lite", "opt-350m"])
def test_a_vocabulary_that_ranks_cannot_divide_stays_whole(family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    compare(tmp_path, 2, tp=2)


@pytest.mark.parametrize("family", ["llama", *(pytest.param(family, marks=full_size) for family in EVEN)])
def test_four_ranks_repeat_the_two_key_heads(family: str, tmp_path: Path) -> None:
    make(family, tmp_path, EVEN[family])
    compare(tmp_path, 4, tp=4)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"quant": "int4"}),
        ("deepseek-v3", {"quant": "int8"}),
        ("llama", {"kv": "int8", "deterministic": True, "draft": "prompt-lookup"}),
        ("mixtral", {"draft": "self:int4"}),
        *(
            pytest.param(family, {"quant": quant, "draft": "self:int8"}, marks=full_size)
            for family in EVEN
            for quant in ("int4", "int8", "fp8:channel")
        ),
    ],
)
def test_packed_weights_and_drafts(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    make(family, tmp_path, EVEN[family])
    compare(tmp_path, 2, tp=2, **settings)


def test_the_multi_token_prediction_layer_is_cut_too(tmp_path: Path) -> None:
    make("deepseek-v3-blocks", tmp_path)
    with_draft(tmp_path)
    compare(tmp_path, 2, tp=2, draft="mtp")


@pytest.mark.parametrize("shards", [2, pytest.param(4, marks=full_size)])
def test_shards_for_some_ranks_are_read_by_others(shards: int, tmp_path: Path) -> None:
    make("deepseek-v3-blocks", tmp_path / "hf")
    convert(open_checkpoint(str(tmp_path / "hf")), tmp_path / "out", "deepseek", None, lambda done, total: None, shards)
    expected = in_ranks(1, tmp_path, answers, tmp_path / "hf", {})
    for ranks in sorted({1, 2, shards}):
        assert in_ranks(ranks, tmp_path, answers, tmp_path / "out", {"tp": ranks}) == expected


def constrained(folder: Path, settings: dict[str, Any]) -> Any:
    params = [
        SamplingParams(schema={"enum": ["alpha", {"kind": "beta"}]}, temperature=1.0, seed=1),
        SamplingParams(regex="[a-f]{20}", temperature=1.0, seed=2),
        SamplingParams(temperature=1.0, seed=3, top_k=9, max_new_tokens=20),
    ]
    with LLM(folder, **{**SETTINGS, **settings}) as llm:
        return [(result.text, result.finish_reason) for result in llm.generate(["One", "Two", "Three"], params)]


def test_grammars(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    make_chat_model(tmp_path)
    expected = in_ranks(1, tmp_path, constrained, tmp_path, {})
    assert [reason for _, reason in expected] == ["stop", "stop", "length"]
    assert in_ranks(2, tmp_path, constrained, tmp_path, {"tp": 2}) == expected


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v3"])
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=full_size)])
def test_expert_parallel_ranks(family: str, ranks: int, tmp_path: Path) -> None:
    make(family, tmp_path, EVEN[family])
    compare(tmp_path, ranks, ep=ranks)


@pytest.mark.parametrize(
    ("family", "ranks", "settings"),
    [
        ("llama", 2, {"pp": 2, "draft": "self:int8"}),
        ("gemma3", 3, {"pp": 3}),
        ("opt", 2, {"pp": 2}),
        pytest.param("deepseek-v3", 3, {"pp": 3}, marks=full_size),
        pytest.param("mixtral", 4, {"pp": 2, "ep": 2}, marks=full_size),
        pytest.param("gemma3", 4, {"pp": 2, "tp": 2, "quant": "int8"}, marks=full_size),
    ],
)
def test_pipeline_stages(family: str, ranks: int, settings: dict[str, Any], tmp_path: Path) -> None:
    make(family, tmp_path, EVEN[family])
    compare(tmp_path, ranks, **settings)


@pytest.mark.parametrize(
    ("family", "ranks", "settings"),
    [
        ("llama", 2, {"tp": 2, "offload": "0,100,100,0,100,0"}),
        ("gemma3", 2, {"pp": 2, "offload": "50,20,50,20,50,20,micro_batch=2,micro_batches=2"}),
        ("mixtral", 2, {"ep": 2, "offload": "0,0,0,0,0,100"}),
        pytest.param("opt", 3, {"pp": 3, "offload": "0,100,0,100,0,100"}, marks=full_size),
    ],
)
def test_each_rank_streams_its_own_part(family: str, ranks: int, settings: dict[str, Any], tmp_path: Path) -> None:
    make(family, tmp_path / "model", EVEN[family])
    compare(tmp_path / "model", ranks, offload_dir=str(tmp_path / "disk"), **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"tp": 3},
            r"^The 4 attention heads of .* cannot be divided among 3 ranks; choose a tp or ep that divides 4\.$",
        ),
        ({"pp": 4}, "has 3 layers, which are too few for 4 stages"),
        ({"ep": 3}, "cannot be"),
        ({"tp": 2, "ep": 4}, "ep must be 1 or the same as tp, not 4"),
        ({"pp": 2, "draft": "mtp"}, "The draft 'mtp' needs all layers"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_ranks_start(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    make("mixtral", tmp_path, EVEN["mixtral"])
    with pytest.raises(UserError, match=sentence):
        LLM(tmp_path, **SETTINGS, **settings)
