"""The original file with its interfaces wrapped gives the records that its rewrite gives."""

import os
from pathlib import Path
from typing import Any

import pytest
from fixture_cases import CASES, FIXTURES, PROJECT, ROOT, Case

from genwright.inspect.analysis.repository import Repository
from genwright.inspect.run.launch import launch
from genwright.inspect.run.run_plan import Choices
from genwright.inspect.run.stored_runs import Call, StoredRun


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(PROJECT), str(FIXTURES / "stubs")]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))


def run(case: Case, mode: str, root: Path) -> StoredRun:
    choices = Choices(mode, ask=True)
    return launch(case.script, case.scenario, case.manifest, choices=choices, root=root, repository=Repository(PROJECT))


def told(call: Call) -> dict[str, Any]:
    """What two runs of the same script agree in."""
    names = ["number", "event", "interface", "object", "line", "arguments", "keywords", "status", "result", "exception"]
    return {name: getattr(call, name) for name in names}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_intercept_and_rewrite_give_equal_records(case: Case, tmp_path: Path) -> None:
    runs = [run(case, mode, tmp_path / mode) for mode in ("intercept", "rewrite")]
    for made in runs:
        assert made.data["status"] == "ended", (made.path / "error.txt").read_text()
    first, second = ([told(call) for call in made.calls()] for made in runs)
    assert first == second and any(call["event"] in ("run", "create") for call in first)
    outputs = [(made.path / "output.txt").read_text() for made in runs]
    assert outputs[0] == outputs[1]
