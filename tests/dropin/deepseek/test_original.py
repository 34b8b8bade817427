"""DeepSeek's own unmodified scripts on our modules, beside its own, if GENWRIGHT_DEEPSEEK names a checkout.

They need transformers 4; GENWRIGHT_DEEPSEEK_PYTHON is a Python that has it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dropin.deepseek.tiny_deepseek import ANSWER, PROMPTS, SHAPES, TORCHRUN, run
from safetensors.torch import load_file

ON_CPU = Path(__file__).with_name("original_on_cpu.py")
OURS = ["-m", "genwright", "dropin", "deepseek", "--script", ON_CPU]
TYPED = "one\ntwo words\n/clear\none\n/exit\n"


@pytest.fixture(scope="session")
def python() -> str:
    path = os.environ.get("GENWRIGHT_DEEPSEEK_PYTHON", sys.executable)
    version = subprocess.run([path, "-c", "import transformers as t; print(t.__version__)"], capture_output=True)
    if not version.stdout.startswith(b"4."):
        pytest.skip("GENWRIGHT_DEEPSEEK_PYTHON names no Python with transformers 4")
    return path


def flags(checkpoints: Path, name: str, ranks: int, folder: Path) -> list[str | Path]:
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    shards = ["--ckpt-path", checkpoints / f"{name}-mp{ranks}", "--config", checkpoints / f"{name}.json"]
    return [*shards, "--max-new-tokens", str(ANSWER), "--temperature", "0"]


@pytest.fixture(scope="module")
def expected(original: Path, checkpoints: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the original's own modules print: for a file of prompts and in a conversation."""
    folder, printed = tmp_path_factory.mktemp("original"), {}
    for name in SHAPES:
        words = [ON_CPU, original / "generate.py", *flags(checkpoints, name, 1, folder)]
        printed[name] = run([*words, "--input-file", "prompts.txt"], folder, python).stdout
        printed[name, "typed"] = run([*words, "--interactive"], folder, python, TYPED).stdout
    return printed


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_generate_answers_as_with_its_own_modules(
    name: str, ranks: int, original: Path, checkpoints: Path, python: str, expected: dict, tmp_path: Path
) -> None:
    launch = TORCHRUN if ranks == 2 else []
    words = [*launch, *OURS, original / "generate.py", *flags(checkpoints, name, ranks, tmp_path)]
    assert run([*words, "--input-file", "prompts.txt"], tmp_path, python).stdout == expected[name]
    assert run([*words, "--interactive"], tmp_path, python, TYPED).stdout == expected[name, "typed"]


@pytest.mark.parametrize("name", SHAPES)
def test_our_command_answers_the_same(name: str, checkpoints: Path, expected: dict, tmp_path: Path) -> None:
    words = ["-m", "genwright", "dropin", "deepseek", "generate", *flags(checkpoints, name, 1, tmp_path)]
    assert run([*words, "--input-file", "prompts.txt"], tmp_path).stdout == expected[name]
    assert run([*words, "--interactive"], tmp_path, typed=TYPED).stdout == expected[name, "typed"]


def test_converted_files_are_the_originals(original: Path, checkpoints: Path, python: str, tmp_path: Path) -> None:
    (tmp_path / "tqdm.py").write_text("tqdm = list\ntrange = range\n")
    source = checkpoints / "v3"
    flags = ["--hf-ckpt-path", source, "--save-path", tmp_path / "mp2", "--n-experts", "8", "--model-parallel", "2"]
    run([original / "convert.py", *flags], tmp_path, python)
    for rank in range(2):
        file = f"model{rank}-mp2.safetensors"
        ours, theirs = load_file(checkpoints / "v3-mp2" / file), load_file(tmp_path / "mp2" / file)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert ours[key].dtype == tensor.dtype and torch.equal(ours[key].float(), tensor.float()), key


def test_fp8_becomes_bfloat16_on_our_kernel(original: Path, checkpoints: Path, python: str, tmp_path: Path) -> None:
    source = tmp_path / "fp8"
    source.mkdir()
    (source / "model.safetensors").symlink_to(checkpoints / "v3" / "model.safetensors")
    (source / "config.json").symlink_to(checkpoints / "v3" / "config.json")
    names = load_file(source / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    for target, script in (("original", [ON_CPU]), ("script", OURS)):
        flags = ["--input-fp8-hf-path", source, "--output-bf16-hf-path", tmp_path / target]
        run([*script, original / "fp8_cast_bf16.py", *flags], tmp_path, python)
    flags = ["--input-fp8-hf-path", source, "--output-bf16-hf-path", tmp_path / "command"]
    run(["-m", "genwright", "dropin", "deepseek", "fp8_cast_bf16", *flags], tmp_path)
    expected = load_file(tmp_path / "original" / "model.safetensors")
    for target in ("script", "command"):
        found = load_file(tmp_path / target / "model.safetensors")
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key


def test_its_configurations_are_here(original: Path) -> None:
    from genwright.dropin.run import folder

    files = list((original / "configs").iterdir())
    assert {file.name for file in files} == {file.name for file in (folder("deepseek") / "configs").iterdir()}
    for file in files:
        assert json.loads(file.read_text()) == json.loads((folder("deepseek") / "configs" / file.name).read_text())
