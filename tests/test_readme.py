"""README's commands and its Python, executed; what they show is compared with what README shows."""

import doctest
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import terminal
import torch

from genwright import cli
from genwright.bench.random_gguf import write_gguf
from genwright.images.model import presets
from genwright.images.model.checkpoint import draw_weights
from genwright.text.checkpoints.open import open_checkpoint

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^genwright .*", README, re.MULTILINE)
MODEL = "random:stories15m,layers=1"
UNET = presets.unet_config(
    None,
    image_size=16,
    num_channels=32,
    num_res_blocks=1,
    num_head_channels=32,
    channel_mult=(1,),
    attention_resolutions=(8,),
    class_cond=True,
)
# What the user brings, or what would take long: README's words, and what the test says instead.
CHANGED = {
    "path/to/model": "smollm2",
    "--max-new-tokens 64": "--max-new-tokens 2",
    "quantize folder": f"quantize {MODEL}",
    "convert folder": f"convert {MODEL}",
    "plan random:opt-30b": "plan random:opt-125m",
    "genwright bench": f"genwright bench {MODEL} --prompt-length 3 --max-new-tokens 2 --samples 1",
    "--num-samples 81": "--num-samples 2",
    "--num-samples 64": "--num-samples 2",
    "images train pictures.npz": "images train pictures.npz --steps 2 --batch-size 2 --hold-out 0 --num-channels 32 "
    "--num-res-blocks 1 --channel-mult 1 --attention-resolutions 8",
    "facebook/opt-30b": "facebook/opt-125m --path _DUMMY_ --prompt-len 4 --gen-len 2 --gpu-batch-size 1",
    "REPO": "project",
    "SCRIPT": "project/class_object.py",
}
SHOWN = {
    'generate "What is': "The capital of France is Paris.",
    'generate "Describe': '"age"',
    "pull": "smollm2",
    "images sample": "2 images of seed 7",
    "dropin flexllmgen --model": "total throughput",
    "dropin flexllmgen --script": "genwright/dropin/flexllmgen/flexllmgen",
}
BARS = ("generate", "chat", "convert", "quantize", "bench", "eval", "images")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that README names."""
    path = tmp_path_factory.mktemp("stand_ins")
    torch.save(draw_weights(UNET, 0).state_dict(), path / "cd_imagenet64_lpips.pt")
    write_gguf(open_checkpoint(MODEL).config, "int4", path / "model.gguf")
    np.savez(path / "pictures.npz", images=np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8))
    (path / "prompts.jsonl").write_text('{"prompt": "One, two,", "max_new_tokens": 2}\n')
    (path / "book.txt").write_text("It was the best of times, it was the worst of times. " * 5)
    (path / "person.json").write_text(
        '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'
    )
    (path / "completion.py").write_text("from flexllmgen import utils\nprint(utils.__file__)\n")
    shutil.copytree(ROOT / "tests" / "inspect" / "fixtures" / "project", path / "project")
    return path


@pytest.fixture
def folder(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with those files."""
    monkeypatch.setitem(presets.PRESETS, "imagenet64", UNET)
    monkeypatch.setattr("genwright.images.training.training_run.GRID", 4)
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "no terminal"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[10:30])
def test_command(
    command: str,
    on_terminal: bool,
    folder: Path,
    smollm2: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = command
    for old, new in CHANGED.items():
        said = said.replace(old, new)
    monkeypatch.setattr(sys, "argv", shlex.split(said, comments=True))
    if on_terminal:
        code, shown = terminal.call(cli.main, typed="/exit\n")
        assert ("━" in shown) == (command.split()[1] in BARS), shown
    else:
        with open(os.devnull) as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            code = leave(cli.main)
        shown, errors = capfd.readouterr()
        assert "Traceback" not in errors
    assert code == 0, shown
    for start, words in SHOWN.items():
        assert words in shown or not command.startswith(f"genwright {start}")


def leave(main) -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


def test_changes_are_of_words_that_are_there() -> None:
    assert len(COMMANDS) >= 15
    assert [words for words in (*CHANGED, *SHOWN) if not any(words in command for command in COMMANDS)] == []


def test_python(smollm2: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    example = doctest.DocTestParser().get_doctest(code, {}, "README.md", "README.md", 0)
    assert len(example.examples) > 5
    report: list[str] = []
    assert doctest.DocTestRunner().run(example, out=report.append).failed == 0, "".join(report)
