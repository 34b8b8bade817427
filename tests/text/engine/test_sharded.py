"""Ranks of gloo on a CPU give the tokens of one rank, with every architecture and weight format."""

import os
from pathlib import Path
from typing import Any

import pytest
from text.families import make
from text.rank_processes import in_ranks

from genwright import LLM, SamplingParams
from genwright.text.export.convert import convert

PROMPTS = [[1, 5, 9, 20, 3], [7, 8] * 20, [1, 2, 3], [4]]
PARAMS = [
    SamplingParams(max_new_tokens=8, ignore_eos=True),
    SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=0.9, seed=3, repetition_penalty=1.2),
    SamplingParams(max_new_tokens=7, ignore_eos=True, temperature=0.9, seed=4, top_k=5, logprobs=2),
    SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=1.0, seed=5, top_p=0.9, n=2, logit_bias={7: 2.0}),
]
SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "cpu_mem": 0.3}
full_size = pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="four processes on few cores")


def answers(folder: Path, settings: dict[str, Any]) -> Any:
    """The tokens of a batch, and of a request alone that the prefix cache shortens."""
    with LLM(folder, **SETTINGS, **settings) as llm:
        batch = [[result.ids, *(sample.ids for sample in result.samples)] for result in llm.generate(PROMPTS, PARAMS)]
        again = llm.generate([PROMPTS[1] + [9]], PARAMS[0])[0].ids
        return batch, again, list(llm.logits(PROMPTS[0]).shape)


def compare(family: str, tmp_path: Path, ranks: int, *, draft: Any = None, **settings: Any) -> None:
    make(family, tmp_path / "model")
    plain = {"draft": draft, **{name: value for name, value in settings.items() if name not in ("tp", "pp", "ep")}}
    expected = in_ranks(1, tmp_path, answers, tmp_path / "model", plain)
    assert in_ranks(ranks, tmp_path, answers, tmp_path / "model", {"draft": draft, **settings}) == expected
    assert len(expected[0]) == len(PROMPTS)


@pytest.mark.parametrize(
    "family", ["llama", "llama-biased", "gemma3", "mixtral", "qwen2-moe", "deepseek-v2-lite", "deepseek-v3", "opt-350m"]
)
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path) -> None:
    compare(family, tmp_path, 2, tp=2)
