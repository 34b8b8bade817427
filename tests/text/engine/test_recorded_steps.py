"""Recorded steps give the tokens of steps that run op by op, and steps without kernels are not recorded."""

import pytest
from text.families import make

from genwright import LLM, SamplingParams
from genwright.kernels.cpu.calls import runner
from genwright.text.engine.recorded_steps import RecordingExecutor

pytestmark = pytest.mark.skipif(runner() is None, reason="no C++ compiler")
GREEDY = SamplingParams(max_new_tokens=90, ignore_eos=True)  # over a page's end
PROMPTS = [[5, 9, 13], [7] * 40, [11, 3], [4, 4, 8, 15, 16, 23]]


def recorded(llm: LLM) -> dict[tuple[int, int, int], bool]:
    """Which shapes of steps are recorded."""
    executor = llm.engine.executor
    assert isinstance(executor, RecordingExecutor)
    return {shape: found is not None for shape, found in executor._recorded.items()}


@pytest.mark.parametrize(("dtype", "quant"), [("float32", None), ("bfloat16", "int8"), ("float32", "int4")])
def test_tokens_equal_those_of_steps_op_by_op(tmp_path, dtype, quant):
    make("llama", tmp_path)
    settings = {"device": "cpu", "dtype": dtype, "quant": quant, "exact_inputs": dtype == "bfloat16"}
    with LLM(tmp_path, **settings) as llm, LLM(tmp_path, **settings, graph=False) as plain:
        for prompts in (PROMPTS[:1], PROMPTS, PROMPTS[1:3]):
            ours, theirs = llm.generate(prompts, GREEDY), plain.generate(prompts, GREEDY)
            assert [result.ids for result in ours] == [result.ids for result in theirs]
        shapes = recorded(llm)
        assert all(shapes.values()) and {(1, 1, 1), (2, 1, 1), (4, 1, 1)} <= shapes.keys()


def test_verification_of_proposals_is_recorded(tmp_path):
    make("llama", tmp_path)
    settings = {"device": "cpu", "dtype": "float32", "draft": "prompt-lookup", "speculate_k": 3}
    with LLM(tmp_path, **settings) as llm, LLM(tmp_path, device="cpu", dtype="float32") as plain:
        prompt = [5, 9, 13, 5, 9, 13, 5, 9]
        assert llm.generate([prompt], GREEDY)[0].ids == plain.generate([prompt], GREEDY)[0].ids
        assert any(queries > 1 for _, queries, _ in recorded(llm))


@pytest.mark.parametrize("settings", [{"kv": "int8"}, {"family": "qwen3"}])
def test_steps_with_other_ops_are_not_recorded(tmp_path, settings):
    family = settings.pop("family", "llama")
    make(family, tmp_path)
    with LLM(tmp_path, device="cpu", dtype="float32", **settings) as llm:
        llm.generate(PROMPTS[:1], GREEDY)
        shapes = recorded(llm)
        assert (1, 1, 1) in shapes and not any(shapes.values())


def test_inputs_are_exact_only_if_asked(tmp_path):
    make("llama", tmp_path)
    x = [5, 9, 13, 10, 17]
    with (
        LLM(tmp_path, device="cpu", dtype="float32", quant="int8", exact_inputs=True) as exact,
        LLM(tmp_path, device="cpu", dtype="float32", quant="int8") as rounding,
        LLM(tmp_path, device="cpu", dtype="float32", quant="int8", backend="torch") as plain,
    ):
        truth = plain.logits(x)
        errors = [((llm.logits(x) - truth).norm() / truth.norm()).item() for llm in (exact, rounding)]
        assert errors[0] < 2e-6 < errors[1] < 0.05, errors  # rounding to 8 bits, but for outliers
