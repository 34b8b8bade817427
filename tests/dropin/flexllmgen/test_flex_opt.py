"""FlexLLMGen's commands: every flag of them, what each does, and the original's own scripts on our modules."""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genwright.errors import UserError

ROOT = Path(__file__).parents[3]
# Every flag of FlexLLMGen's files, with a value that is not the default and what it gives.
SHARED: dict[str, tuple[list[str], Any]] = {
    "--model": (["facebook/opt-30b"], "facebook/opt-30b"),
    "--path": (["_DUMMY_"], "_DUMMY_"),
    "--offload-dir": (["offload"], "offload"),
    "--percent": (["0", "100", "50", "50", "0", "0"], [0, 100, 50, 50, 0, 0]),
    "--pin-weight": (["0"], False),
    "--cpu-cache-compute": ([], True),
    "--compress-weight": ([], True),
    "--compress-cache": ([], True),
}
FLAGS: dict[str, dict[str, tuple[list[str], Any]]] = {
    "flex_opt": {
        **SHARED,
        "--prompt-len": (["64"], 64),
        "--gen-len": (["16"], 16),
        "--cut-gen-len": (["8"], 8),
        "--debug-mode": (["breakdown"], "breakdown"),
        "--gpu-batch-size": (["2"], 2),
        "--num-gpu-batches": (["3"], 3),
        "--sep-layer": (["false"], False),
        "--attn-sparsity": (["0.5"], 0.5),
        "--log-file": (["my.log"], "my.log"),
        "--no-log": ([], True),
        "--verbose": (["0"], 0),
        "--overlap": (["no"], False),
    },
    "apps/completion": SHARED,
    "dist_flex_opt": {
        "--head-ip": (["127.0.0.1"], "127.0.0.1"),
        "--port": (["7777"], 7777),
        "--rank": (["1"], 1),
        "--local-rank": (["1"], 1),
        "--world-size": (["2"], 2),
        "--use-mpi": ([], True),
        "--comm-device": (["cpu"], "cpu"),
        "--num-inner-iterations": (["3"], 3),
        "--async-comm": ([], True),
    },
    "opt_config": {"--model": (["facebook/opt-30b"], "facebook/opt-30b"), "--path": (["weights"], "weights")},
    "profile_bandwidth": {"--offload-path": (["tmp.npy"], "tmp.npy")},
    "profile_matmul": {},
}


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`genwright dropin flexllmgen ...` in a folder from which only this checkout can be imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "genwright", "dropin", "flexllmgen", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def flags_of(text: str) -> set[str]:
    """The flags that a script's `add_argument` calls add."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    added = [call for call in calls if getattr(call.func, "attr", "") == "add_argument"]
    return {word.value for call in added for word in call.args if isinstance(word, ast.Constant)}


@pytest.mark.parametrize("name", FLAGS)
def test_the_list_of_flags_is_the_originals(name: str, original: Path) -> None:
    assert flags_of((original / "flexllmgen" / f"{name}.py").read_text()) == set(FLAGS[name])


def flex_opt_parser() -> argparse.ArgumentParser:
    from flexllmgen.flex_opt import add_parser_arguments

    parser = argparse.ArgumentParser()
    add_parser_arguments(parser)
    return parser


@pytest.mark.parametrize("flag", FLAGS["flex_opt"])
def test_every_flag_of_flex_opt_is_read(flag: str) -> None:
    words, value = FLAGS["flex_opt"][flag]
    name = flag[2:].replace("-", "_")
    assert getattr(flex_opt_parser().parse_args([]), name) != value
    assert getattr(flex_opt_parser().parse_args([flag, *words]), name) == value


def test_flags_become_the_policy() -> None:
    from flexllmgen.policy_flags import make_policy

    words = [word for flag, (values, _) in FLAGS["flex_opt"].items() for word in (flag, *values)]
    policy = make_policy(flex_opt_parser().parse_args(words))
    shares = ("w_gpu", "w_cpu", "w_disk", "cache_gpu", "cache_cpu", "cache_disk", "act_gpu", "act_cpu", "act_disk")
    assert [getattr(policy, f"{name}_percent") for name in shares] == [0, 100, 0, 50, 50, 0, 0, 0, 100]
    assert (policy.gpu_batch_size, policy.num_gpu_batches, policy.attn_sparsity) == (2, 3, 0.5)
    assert not (policy.overlap or policy.sep_layer or policy.pin_weight)
    assert policy.cpu_cache_compute and policy.compress_weight and policy.compress_cache


def test_the_log_has_the_originals_name() -> None:
    from flexllmgen.flex_opt import get_filename

    words = ["--model", "facebook/opt-30b", "--compress-weight", "--compress-cache"]
    expected = "fo-30b-gbs4-ngbs1-prompt512-gen32-percent-100-0-100-0-100-0-gpu-cache-compw-compc"
    assert get_filename(flex_opt_parser().parse_args(words)) == expected
    assert "-cpu-cache" in get_filename(flex_opt_parser().parse_args(["--cpu-cache-compute"]))


REPORT = re.compile(
    r"model size: \S+ GB\tcache size: \S+ GB\thidden size \(p\): \S+ GB\n"
    r"peak gpu mem: \S+ GB\tprojected: (True|False)\n"
    r"(?:(?:prefill|decode|total) latency: [0-9.]+ s\t\w+ throughput: [0-9.]+ token/s\n?){3}"
)


def flex_opt(tiny, *words: str) -> None:
    """The command in this process, with the tiny model."""
    from flexllmgen.flex_opt import run_flexllmgen

    common = ["--model", "facebook/opt-125m", "--path", str(tiny.path), "--prompt-len", "40", "--gen-len", "6"]
    run_flexllmgen(flex_opt_parser().parse_args([*common, "--gpu-batch-size", "2", *words]))


def test_the_benchmark_prints_and_logs_as_the_original(tiny, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flex_opt(tiny)
    printed = capsys.readouterr().out
    steps = ["<run_flexllmgen>: args.model: facebook/opt-125m", "model size: 0.230 GB, cache size:", "init weight..."]
    steps += ["warmup - generate", "benchmark - generate", "Outputs:\n" + "-" * 70, "0: Paris is the capital city of"]
    steps += ["1: Paris is the capital city of", "TorchDevice: cuda:0", "TorchDevice: cpu", "prefill latency"]
    places = [printed.index(step) for step in steps]
    assert places == sorted(places)
    (log,) = tmp_path.glob("*.log")
    assert log.name == "fo-125m-gbs2-ngbs1-prompt40-gen6-percent-100-0-100-0-100-0-gpu-cache.log"
    assert REPORT.fullmatch(log.read_text().rstrip())
    assert log.read_text() in printed
    placed = ["--percent", "0", "50", "50", "0", "0", "0", "--offload-dir", "offload", "--sep-layer", "0"]
    debug = (["--debug-mode", mode, *placed] for mode in ("fewer_batch", "breakdown"))
    for words in (["--cut-gen-len", "4"], *debug, placed, []):
        flex_opt(tiny, "--no-log", "--verbose", "1", *words)
        printed = capsys.readouterr().out
        assert (found := REPORT.search(printed))
        assert (found[1] == "True") == bool({"--cut-gen-len", "--debug-mode"} & set(words))
        assert ("load_weight            (per-layer): " in printed) == ("breakdown" in words)
        assert "Outputs" not in printed
    flex_opt(tiny, "--log-file", "my.log", "--verbose", "0")
    assert not REPORT.search(capsys.readouterr().out)
    assert not list((tmp_path / "offload").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "my.log", "offload"}


def test_the_commands_run(tiny, tmp_path: Path) -> None:
    done = run("completion", "--model", "facebook/opt-125m", "--path", tiny.path, "--compress-weight", cwd=tmp_path)
    assert re.fullmatch(r"Initialize...\nGenerate...\nOutputs:\n-{70}\n0: (?s:.*)\n-{70}\nShutdown...\n", done.stdout)
    with pytest.raises(UserError, match="--percent needs six numbers, not 2"):
        flex_opt(tiny, "--percent", "100", "0")


def test_completion_runs_unmodified(original: Path, tiny, tmp_path: Path) -> None:
    names = ("tokenizer.json", "tokenizer_config.json")
    (tmp_path / "facebook" / "opt-30b").mkdir(parents=True)  # transformers takes a name for a folder that exists
    for name in names:
        shutil.copy(tiny.path / "opt-125m-np" / name, tmp_path / "facebook" / "opt-30b")
    script = original / "flexllmgen" / "apps" / "completion.py"
    placed = ["--percent", "0", "50", "0", "50", "0", "0", "--offload-dir", "offload", "--pin-weight", "0"]
    for flags in ([], [*placed, "--cpu-cache-compute", "--compress-weight", "--compress-cache"]):
        done = run("--script", script, "--model", "facebook/opt-125m", "--path", tiny.path, *flags, cwd=tmp_path)
        assert "Question: What is the longest river on the earth?\nAnswer:" in done.stdout
        assert done.stdout.endswith("Shutdown...\n")
    assert not list((tmp_path / "offload").iterdir())


def test_the_originals_flex_opt_is_replaced_whole(original: Path, tiny, tmp_path: Path) -> None:
    flags = ["--model", "facebook/opt-125m", "--path", tiny.path, "--prompt-len", "16", "--gen-len", "3"]
    done = run("--script", original / "flexllmgen" / "flex_opt.py", *flags, cwd=tmp_path)
    assert "so Genwright's flexllmgen.flex_opt runs" in done.stderr
    assert REPORT.search(done.stdout)
