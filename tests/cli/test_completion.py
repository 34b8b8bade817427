"""Completion, asked for as bash asks, and typed at a prompt."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from terminal import Terminal

from genwright.cli import VERBS
from genwright.cli.completion import complete


def words(*typed: str) -> list[str]:
    return [line.partition("\t")[0] for line in complete(*typed)]


def test_verbs_subcommands_and_flags() -> None:
    assert words("") == list(VERBS)
    assert words("ch") == ["chat"]
    assert words("images", "") == ["sample", "edit", "train", "search", "metrics"]
    assert words("images", "train", "--num-c") == ["--num-channels"]
    assert "--sampler" in words("images", "--s"), "bare, it samples"
    assert words("generate", "Hello", "--temp") == ["--temperature"]
    assert words("inspect", "rew") == ["rewrite"]


@pytest.mark.parametrize(
    "typed", [["convert", ""], ["generate", "--model", "m"], ["generate", "--out", "-"], ["no", ""]]
)
def test_files_are_the_shells_own(typed: list[str]) -> None:
    assert words(*typed) == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_flags(verb: str) -> None:
    assert "--help" in words(verb, "--")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_at_a_prompt(shell: str, tmp_path: Path) -> None:
    """As a person sees it: a word that is completed, then a flag."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    command = tmp_path / "bin" / "genwright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m genwright "$@"\n')
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    plain = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
    terminal = Terminal(shell, *plain, "-i", cwd=tmp_path, **path)
    os.write(terminal.master, f'eval "$(genwright --show-completion {shell})"; echo re"ad"y\n'.encode())
    terminal.wait_for("ready")
    os.write(terminal.master, b"genwright qua\t")
    assert "quantize " in terminal.wait_for("quantize ", 20)
    os.write(terminal.master, b"--calib\t")
    assert "--calibration " in terminal.wait_for("--calibration ", 20)
    terminal.process.kill()
    terminal.end()
