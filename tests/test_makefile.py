"""`make demo`, as its first user sees it, and the files that `make gpu` runs."""

import os
import re
import sys
from pathlib import Path

import pytest
import terminal

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# One image of each category instead of nine.
CHANGED = {"$(BIN)/genwright": f'"{sys.executable}" -m genwright', "-n 81": "-n 9"}


def demo() -> str:
    """The recipe, as a shell script."""
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0].splitlines()[1:]
    script = "set -e\n" + "\n".join(line.removeprefix("\t") for line in recipe)
    for old, new in CHANGED.items():
        assert old in script
        script = script.replace(old, new)
    return script


def test_demo_on_a_terminal(smollm2: Path, tmp_path: Path) -> None:
    code, shown = terminal.run("sh", "-c", demo(), cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
    assert code == 0, shown
    assert "The capital of France is Paris." in shown and "9 images of seed 7" in shown
    assert (tmp_path / "emoji.png").is_file()
    for line in README.partition("$ make demo\n")[2].partition("$ make test")[0].splitlines():
        assert numbers_left_out(line) in numbers_left_out(shown), "README shows what it prints"


def numbers_left_out(text: str) -> str:
    return re.sub(r"[0-9.]+", "N", text)


def test_make_gpu_finds_every_file_with_tests_of_a_gpu(request: pytest.FixtureRequest) -> None:
    """Of those that this run has collected; with a GPU, tests that ask for a `device` run on it."""
    found = re.search(r"grep -lrE '(.+?)'", (ROOT / "Makefile").read_text())
    assert found is not None
    used = {item.path for item in request.session.items if {"gpu", "device"} & {*item.keywords, *item.fixturenames}}
    assert [str(path) for path in sorted(used) if not re.search(found[1], path.read_text())] == []
