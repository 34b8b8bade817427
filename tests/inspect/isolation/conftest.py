"""A project, and scripts that run in it, isolated."""

import sys
from pathlib import Path

import pytest
from isolated_scripts import Run, isolated, left_running, refuse_namespaces

from genwright.inspect.isolation.isolation import Ended, Isolation, Limits


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "a project, with: signs"
    folder.mkdir()
    (folder / "data.txt").write_text("data")
    return folder


@pytest.fixture
def run(tmp_path: Path, project: Path) -> Run:
    """Run a script's text in `project`; the mark in its arguments finds its processes."""

    def start(text: str, limits: Limits | None = None, echo: bool = False, **isolation: object) -> Ended:
        script, folder = project / "script.py", tmp_path / "records" / "run-0001"
        script.write_text(text)
        command = [sys.executable, str(script), str(tmp_path)]
        given = Isolation(limits or Limits(seconds=30), **isolation)  # type: ignore[arg-type]
        ended = isolated(command, folder, project, project, given, echo=echo)
        assert not left_running(str(tmp_path))
        return ended

    return start


@pytest.fixture(params=["namespaces", "unsafe"])
def either(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same with namespaces, and where the system refuses them but the user insists."""
    if request.param == "namespaces":
        return run
    refuse_namespaces(monkeypatch)
    return lambda text, limits=None, **isolation: run(text, limits, unsafe=True, **isolation)
