"""Rewrite a script that visitors would use, without being asked for anything, and run it."""

from pathlib import Path

from fixture_cases import PROJECT, Run, run

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import rewrite


def visited(source: str, folder: Path, scenario: Scenario | None = None, stubs: bool = True) -> Run:
    original = folder / "original"
    original.mkdir(parents=True, exist_ok=True)
    (original / "script.py").write_text("from tinymodel import generate\n" + source)
    manifest = load_manifest(PROJECT / "tinymodel.toml")
    made = rewrite(original / "script.py", manifest, scenario or Scenario(), Repository(original), ask=False)
    (folder / "new.py").write_text(made.text)
    done = run([str(folder / "new.py")], folder / "run", stubs=stubs)
    assert done.code == 0, done.errors
    return done


def prompts(done: Run) -> list[str]:
    """What the model was given."""
    return [keywords["prompt"] for _, keywords in done.seen]


def handlers(done: Run) -> list[str]:
    """The handlers that were called, each with how it ended."""
    return [f"{r.interface} {r.status}" for r in done.records if r.event == "handler"]
