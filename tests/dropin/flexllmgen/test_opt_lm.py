"""OptLM's tokens: transformers' on the same weights, and those of FlexLLMGen's own code on a CPU."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text.families import greedy

from genwright.errors import UserError
from genwright.placement.policy import Policy

PAD, NEW = 1, 12


def prompts(batch: int, length: int = 24) -> np.ndarray:
    """Random prompts of different lengths, padded on the left."""
    # The original computes in float16; with these prompts, no two tokens are so close that its rounding could decide.
    draw = np.random.default_rng(28)
    rows = draw.integers(4, 260, (batch, length))
    for i, row in enumerate(rows):
        row[: 5 * i % length] = PAD
    return rows


def make(tiny, batches: tuple[int, int] = (4, 1), percent=(100, 0, 100, 0, 100, 0), dtype=np.float32, **changes: Any):
    from flexllmgen.flex_opt import CompressionConfig, ExecutionEnv, OptLM, Policy

    env = ExecutionEnv.create(str(tiny.path / "offload"))
    groups = [CompressionConfig(4, 64, axis, False) for axis in (0, 2)]
    policy = Policy(*batches, *percent, True, True, False, False, 1.0, False, groups[0], False, groups[1])
    policy = type(policy)(**{**vars(policy), **changes})
    return OptLM(tiny.config(dtype=dtype), env, str(tiny.path), policy)


@pytest.mark.parametrize("percent", [(100, 0) * 3, (0, 100) * 3, (0, 0) * 3, (30, 40, 25, 50, 40, 30)])
def test_greedy_tokens_are_those_of_transformers(tiny, percent: tuple[int, ...]) -> None:
    rows = prompts(4)
    output = make(tiny, (2, 2), percent).generate(rows, max_new_tokens=NEW)
    assert output.dtype == np.int32
    assert (output[:, : rows.shape[1]] == rows).all()
    for row, after in zip(rows, output[:, rows.shape[1] :], strict=True):
        assert after.tolist() == greedy(tiny.model, row[row != PAD].tolist(), NEW)


def rows_of_the_original(checkout: Path, tiny, rows: np.ndarray, tmp_path: Path, **job: Any) -> list[list[int]]:
    """The rows of FlexLLMGen's own OptLM, in a process of its own."""
    config = {name: value for name, value in asdict(tiny.config()).items() if name != "dtype"}
    common = {"config": config, "path": str(tiny.path), "offload_dir": str(tmp_path), "inputs": rows.tolist()}
    common |= {"batches": (4, 1), "percent": (100, 0) * 3, "cpu_cache_compute": False, "attn_sparsity": 1.0}
    common |= {"stop": None, "max_new_tokens": NEW}
    script = Path(__file__).with_name("original_on_cpu.py")
    command, text = [sys.executable, str(script), str(checkout)], json.dumps({**common, **job})
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("job", [{}, {"batches": (2, 2)}, {"percent": (0, 100) * 3}], ids=str)
def test_greedy_tokens_are_those_of_the_original(original: Path, tiny, tmp_path: Path, job: dict[str, Any]) -> None:
    rows, model = prompts(4), make(tiny, **job)
    expected = model.generate(rows, max_new_tokens=NEW)
    assert expected.tolist() == rows_of_the_original(original, tiny, rows, tmp_path, **job)
    stop = int(expected[1, rows.shape[1] + 3])
    expected = model.generate(rows, max_new_tokens=NEW, stop=stop)
    assert (expected[1, rows.shape[1] + 4 :] == PAD).all()
    assert expected.tolist() == rows_of_the_original(original, tiny, rows, tmp_path, stop=stop, **job)


@pytest.mark.parametrize("sparsity", [1.0, 0.5, 0.11])
def test_sparse_attention_on_the_cpu_is_the_originals(original: Path, tiny, tmp_path: Path, sparsity: float) -> None:
    """With the cache on disk, which works there on a CPU; without padding, which it counts as cached tokens."""
    job = {"percent": (100, 0, 0, 0, 100, 0), "cpu_cache_compute": True, "attn_sparsity": sparsity}
    rows = np.where(prompts(4) == PAD, 99, prompts(4))
    ours = make(tiny, **job).generate(rows, max_new_tokens=NEW)
    assert ours.tolist() == rows_of_the_original(original, tiny, rows, tmp_path, **job)


def test_samples_differ_within_a_batch_and_repeat_with_torchs_seed(tiny) -> None:
    model, rows = make(tiny), np.repeat(prompts(1), 4, axis=0)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.5}

    def draw() -> list[list[int]]:
        torch.manual_seed(7)
        return model.generate(rows, **options).tolist()

    first = draw()
    assert len({tuple(row) for row in first}) == 4
    assert first == draw()
    assert first != model.generate(rows, **options).tolist()
    cold = model.generate(rows, max_new_tokens=NEW, do_sample=True, temperature=1e-6)
    assert cold.tolist() == model.generate(rows, max_new_tokens=NEW).tolist()


def test_a_cut_answer_is_padded_and_a_debug_mode_projects_the_rest(tiny, capsys) -> None:
    from flexllmgen.timer import timers

    model, rows = make(tiny), prompts(4)
    length, whole = rows.shape[1], model.generate(rows, max_new_tokens=NEW)
    timers("generate").reset()
    cut = model.generate(rows, max_new_tokens=NEW, cut_gen_len=5)
    assert (cut[:, : length + 5] == whole[:, : length + 5]).all()
    assert (cut[:, length + 5 :] == PAD).all()
    assert len(timers("generate").costs) == 5
    for mode in ("fewer_batch", "breakdown"):
        timers("generate").reset()
        some = model.generate(rows, max_new_tokens=NEW, debug_mode=mode)
        assert (some[:, : length + 4] == whole[:, : length + 4]).all()
        assert (some[:, length + 4 :] == PAD).all()
        assert len(timers("generate").costs) == NEW
        assert min(timers("generate").costs) > 0
    assert f"#batches decoding: {(NEW - 1) * 8}" in capsys.readouterr().out


@pytest.mark.parametrize("percent", [(100, 0) * 3, (0, 100) * 3, (0, 0) * 3])
def test_a_breakdown_shows_what_moves(tiny, capsys, percent: tuple[int, ...]) -> None:
    model = make(tiny, (2, 2), percent, overlap=False)
    model.generate(prompts(4), max_new_tokens=NEW, debug_mode="breakdown")
    printed = capsys.readouterr().out
    found = dict(re.findall(r"^(\w+) +\(per-(?:layer|batch)\): ([0-9.]+) s$", printed, re.MULTILINE))
    parts = [f"{part}_{stage}" for stage in ("prefill", "decoding") for part in ("load_cache", "store_cache")]
    moves = {"load_weight", *parts}
    assert set(found) == moves | {"compute_layer_prefill", "compute_layer_decoding"}
    assert all((float(found[part]) > 0) == (percent[0] < 100) for part in moves - {"load_cache_prefill"})
    # Tokens that this thread reads late, because others compute, count for the step before.
    assert float(found["compute_layer_prefill"]) + float(found["compute_layer_decoding"]) > 0
    assert model.generate(prompts(4), max_new_tokens=3).shape == (4, 27)  # and measures no more
    assert capsys.readouterr().out == ""


def test_the_policy_is_the_engines(tiny) -> None:
    from flexllmgen.flex_opt import ExecutionEnv

    assert make(tiny).llm.config.offload is None
    switches = {"overlap": False, "sep_layer": False, "pin_weight": True, "cpu_cache_compute": True}
    model = make(tiny, (2, 3), (20, 30, 10.0, 40.0, 0, 100), attn_sparsity=0.5, **switches)
    assert model.llm.config.offload == Policy(20, 30, 10, 40, 0, 100, 2, 3, False, False, True, True, 0.5)
    assert model.llm.config.offload_dir == str(tiny.path / "offload")
    with pytest.raises(UserError, match="weights_gpu must be a whole number"):
        make(tiny, percent=(99.5, 0, 100, 0, 100, 0))
    with pytest.raises(UserError, match="has no disk"):
        type(model)(model.config, ExecutionEnv(), str(tiny.path), model.policy)


def test_closing_the_environment_closes_its_models(tiny) -> None:
    model = make(tiny)
    model.env.close_copy_threads()
    with pytest.raises(UserError, match="closed"):
        model.generate(prompts(4))


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (prompts(3), {}, "needs 4 prompts of one length, not 3"),
        ([[5, 6], [7], [8, 9], [9]], {}, r"not 4 of \[1, 2\] tokens"),
        (np.flip(prompts(4), 1), {}, "padded on the left"),
        (prompts(4), {"max_new_tokens": 250}, "exceed the context"),
        (prompts(4), {"debug_mode": "slow"}, "debug_mode must be fewer_batch or breakdown"),
    ],
)
def test_mistakes_are_one_sentence(tiny, rows: np.ndarray, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(tiny).generate(rows, **options)


def test_compression_becomes_formats_of_ours(tiny) -> None:
    from flexllmgen.compression import CompressionConfig

    model = make(tiny, compress_weight=True, compress_cache=True)
    assert (model.llm.config.quant, model.llm.config.kv) == ("int4:g64:asym", "int4")
    assert model.generate(prompts(4), max_new_tokens=3).shape == (4, 27)
    off = make(tiny, compress_weight=True, comp_weight_config=CompressionConfig(4, 64, 0, True, enabled=False))
    assert off.llm.config.quant is None
    with pytest.raises(UserError, match="num_bits must be 4"):
        make(tiny, compress_cache=True, comp_cache_config=CompressionConfig(8, 64, 2, False))
    with pytest.raises(UserError, match="cannot be combined"):
        make(tiny, compress_cache=True, attn_sparsity=0.5)
