"""Every command that shows a bar, on a terminal."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import terminal

from genwright import cli
from genwright.cli.progress import bar

MODEL = "random:stories15m,layers=1"
TRAINING = "--num-channels 32 --num-res-blocks 1 --channel-mult 1 --attention-resolutions 8 --steps 2 --hold-out 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands read."""
    path = tmp_path_factory.mktemp("progress")
    rng = np.random.default_rng(0)
    np.savez(path / "data.npz", images=rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8))
    (path / "words.txt").write_text("one two three " * 40)
    (path / "prompts.txt").write_text("One\nTwo\n")
    shutil.copytree(Path(__file__).parents[1] / "inspect" / "fixtures" / "project", path / "project")
    return path


@pytest.mark.parametrize(
    ("command", "bars"),
    [
        (f"generate --prompt-length 3 --max-new-tokens 2 --model {MODEL}", "Loading"),
        ("generate --prompts prompts.txt --out results.jsonl --max-new-tokens 1", "Loading, Prompts"),
        ("eval --text words.txt smollm2", "Loading, Evaluating"),
        (f"bench {MODEL} --prompt-length 3 --max-new-tokens 2 --samples 1", "measuring"),
        (f"convert {MODEL} converted", "Converting"),
        (f"quantize {MODEL} quantized --format int8", "Quantizing"),
        ("images -n 2 --seed 1 --out sampled", "Sampling"),
        (f"images train data.npz --out trained --batch-size 2 {TRAINING}", "steps"),
        ("inspect locate project/class_object.py project/argparse_options.py", "Inspecting"),
    ],
    ids=lambda value: value[:16],
)
def test_bar_on_a_terminal(command: str, bars: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("genwright.images.train.GRID", 4)
    monkeypatch.setattr(sys, "argv", ["genwright", *command.split(), *device(command)])
    code, shown = terminal.call(cli.main)
    assert code == 0, shown
    assert all(name in shown for name in bars.split(", ")) and "━" in shown


def device(command: str) -> list[str]:
    return [] if command.startswith(("convert", "inspect")) else ["--device", "cpu"]


def test_output_to_a_file_stays_there_while_a_bar_is_shown(tmp_path: Path) -> None:
    code = "from genwright.cli.progress import bar\nwith bar('Title') as tell: print('result')"
    shown = terminal.run("bash", "-c", f'"{sys.executable}" -c "{code}" > out.txt', cwd=tmp_path)
    assert shown.code == 0 and "Title" in shown.output and "result" not in shown.output
    assert (tmp_path / "out.txt").read_text() == "result\n"


def test_no_bar_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("Title") as tell:
        tell(1, 2)
    assert capsys.readouterr() == ("", "")
