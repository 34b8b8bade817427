"""PyTorch's benchmark on the engine: its rows, its files, its models of random weights, and its own scripts."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
import torch

from genwright.errors import UserError

ROOT = Path(__file__).parents[3]
TINY = {"block_size": 256, "n_layer": 2, "n_head": 4, "n_local_heads": 2, "dim": 64, "vocab_size": 32000}
MOE = {**TINY, "intermediate_size": 128, "num_experts": 8, "num_activated_experts": 2}
SHAPES = {"model": {"7B": TINY}, "mixtral_moe_model": {"Mixtral-8x7B-v0.1": MOE}}
HEADERS = ["name", "metric", "target", "actual", "dtype", "device", "arch", "is_model"]
MODELS = {
    "run_llama2_7b_bf16": ("Llama-2-7b-chat-hf", "bfloat16", ("94", "1253", "133")),
    "run_llama2_7b_int8": ("Llama-2-7b-chat-hf", "int8", ("144", "957", "136")),
    "run_mixtral_8x7b_int8": ("Mixtral-8x7B-v0.1", "int8", ("175", "1130", "133")),
}
MICRO = {
    "run_mlp_layer_norm_gelu": [("mlp_layer_norm_gelu", "flops_utilization", "0.8", "bfloat16")],
    "run_layer_norm": [("layer_norm", "memory_bandwidth(GB/s)", "950", "bfloat16")],
    "run_gather_gemv": [
        ("gather_gemv", "memory_bandwidth(GB/s)", t, d) for d, t in (("int8", "990"), ("bfloat16", "1060"))
    ],
    "run_gemv": [("gemv", "memory_bandwidth(GB/s)", t, d) for d, t in (("int8", "870"), ("bfloat16", "990"))],
}
FLAGS = {"--output": "results.csv", "--only": "gemv"}


def read_rows(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


@pytest.fixture
def tiny() -> None:
    import mixtral_moe_model
    import model

    model.transformer_configs.update(SHAPES["model"])
    mixtral_moe_model.transformer_configs.update(SHAPES["mixtral_moe_model"])


@pytest.mark.parametrize("name", MODELS)
def test_models_give_three_figures(tiny, name: str, capsys) -> None:
    import generate

    model, dtype, targets = MODELS[name]
    rows = getattr(generate, name)("cpu")
    metrics = ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)")
    assert [row.metric for row in rows] == list(metrics)
    for row, target in zip(rows, targets, strict=True):
        assert (row.name, str(row.target), row.dtype, row.device, row.is_model) == (model, target, dtype, "cpu", True)
        assert row.arch == generate.get_arch_name()
        assert float(row.actual) >= 0
    printed = capsys.readouterr().out
    words = [f"Loading model {model}", "Time to load model", "Compilation time", "Average tokens/sec", "Memory used"]
    assert all(word in printed for word in words)
    assert ("Using int8" in printed) == (dtype == "int8")


def test_only_weights_that_are_read_count(tiny) -> None:
    import generate

    config = generate.GPTModelConfig("Mixtral-8x7B-v0.1", generate.MixtralMoE, "int8", None, 0, 0, 0)
    layer = 64 * 64 + 64 * 128 + 2 * 64 + 8 * 64 + 2 * 3 * 64 * 128  # two of eight experts
    assert generate._activated_bytes(config) == 2 * (2 * layer + 64 + 64 * 32000)


def test_published_shapes_are_not_written_to_a_file(monkeypatch) -> None:
    import generate

    opened = []

    class Opened(Exception):
        pass

    def open_model(name: str, **settings: object) -> None:
        opened.append((name, settings["quant"]))
        raise Opened

    monkeypatch.setattr(generate, "LLM", open_model)
    for run in MODELS:
        with pytest.raises(Opened):
            getattr(generate, run)("cpu")
    assert opened == [
        ("random:llama-2-7b,layers=32", None),
        ("random:llama-2-7b,layers=32", "int8"),
        ("random:mixtral-8x7b,layers=16", "int8"),
    ]


def test_autoquant_needs_its_package() -> None:
    import generate

    config = generate.GPTModelConfig("Llama-2-7b-chat-hf", generate.LLaMA, "autoquant", None, 0, 0, 0)
    with pytest.raises(UserError, match="autoquant needs the package torchao"):
        generate.run_experiment(config, device="cpu")


@pytest.mark.parametrize("name", MICRO)
def test_micro_experiments(name: str, monkeypatch, device: str) -> None:
    import benchmark
    import micro_experiments

    monkeypatch.setattr(micro_experiments, "SIZES", (64, 128))
    monkeypatch.setattr(micro_experiments, "HIDDEN", 96)
    rows = getattr(benchmark, name)(device)
    assert [(row.name, row.metric, row.target, row.dtype) for row in rows] == MICRO[name]
    assert all(re.fullmatch(r"\d+\.\d\d", row.actual) and not row.is_model for row in rows)


def test_rows_are_appended(tmp_path: Path, monkeypatch) -> None:
    import benchmark

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        benchmark.all_experiments,
        "one",
        lambda device: [benchmark.Experiment("one", "speed", 3, 2.5, "int8", device, "x86_64", True)],
    )
    for output in ("results.csv", "results.csv", "new/results.csv"):
        benchmark.main(output, "one")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    row = ["one", "speed", "3", "2.500000", "int8", device, "x86_64", "True"]
    assert read_rows(Path("results.csv")) == [HEADERS, row, row]
    assert read_rows(Path("new/results.csv")) == [HEADERS, row]
    record = json.loads(Path("results.json").read_text().splitlines()[0])
    assert record["model"] == {"name": "one", "type": "OSS model", "origins": ["pytorch"]}
    assert record["metric"] == {"name": "speed", "benchmark_values": [2.5], "target_value": 3}
    Path("old.csv").write_text("name,metric\na,b\n")
    benchmark.output_csv("old.csv", HEADERS, row)
    assert read_rows(Path("old.csv")) == [HEADERS, ["a", "b", *"000000"], row]
    with pytest.raises(UserError, match="There is no experiment 'two'; there are llama2_7b_bf16, "):
        benchmark.main("results.csv", "two")


def test_an_experiment_has_an_arch_or_not(monkeypatch) -> None:
    import common

    new = common.Experiment("a", "b", 1, 2, "int8", "cpu", "x86_64", True)
    assert astuple(new) == ("a", "b", 1, 2, "int8", "cpu", "x86_64", True)
    old = common.Experiment("a", "b", 1, 2, "int8", "cpu", True)
    assert (old.arch, old.is_model) == ("", True)

    @dataclass
    class Experiment:  # of a script of an older version
        name: str
        metric: str
        target: float
        actual: float

    monkeypatch.setattr(sys.modules["__main__"], "Experiment", Experiment, raising=False)
    row = common.new_experiment(name="a", metric="b", target=1, actual=2, arch="x", is_model=True)
    assert astuple(row) == ("a", "b", 1, 2)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_read(flag: str) -> None:
    import benchmark

    found = vars(benchmark.parser().parse_args([flag, FLAGS[flag]]))
    assert found[flag.removeprefix("--")] == FLAGS[flag]


def test_the_list_of_flags_is_the_originals(original: Path) -> None:
    assert set(re.findall(r'"(--\w+)"', (original / "benchmark.py").read_text())) == set(FLAGS)


def run(command: list[str | Path], cwd: Path, path: Path = ROOT) -> str:
    env = {**os.environ, "PYTHONPATH": str(path), "TINY_SHAPES": json.dumps(SHAPES), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WITH_SHAPES = ROOT / "tests" / "dropin" / "with_shapes.py"
OURS = ["-m", "genwright", "dropin", "torchbench", "--script"]


@pytest.mark.parametrize("name", ["llama2_7b_bf16", "mixtral_8x7b_int8"])
def test_the_original_command_runs_our_models(original: Path, tmp_path: Path, name: str) -> None:
    """With a folder in the name, because the original makes the folder of the file."""
    flags = ["--output", tmp_path / "results.csv", "--only", name]
    for _ in range(2):
        run([*OURS, WITH_SHAPES, original / "benchmark.py", *flags], tmp_path)
    headers, *rows = read_rows(tmp_path / "results.csv")
    assert headers == HEADERS
    assert [row[1] for row in rows] == ["token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)"] * 2


def test_the_originals_generate_gives_the_same_tokens(original: Path, tmp_path: Path) -> None:
    """Its functions, with our modules and with its own; on ours, torch.compile too."""
    script = Path(__file__).with_name("greedy_tokens.py")
    expected = run([script, original / "generate.py", "eager"], tmp_path, original)
    assert len(expected.splitlines()[-1].split()) > 40
    for mode in ("eager", "compiled"):
        assert (
            run([*OURS, script, original / "generate.py", mode], tmp_path).splitlines()[-1] == expected.splitlines()[-1]
        )
