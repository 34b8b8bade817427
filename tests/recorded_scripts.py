"""Scripts of a test, run and recorded."""

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixture_cases import PROJECT, ROOT

from genwright.inspect.analysis.manifest import Manifest, load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import parse_scenario
from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.run.launch import launch
from genwright.inspect.run.make_plan import RunOptions

MODEL = load_manifest(PROJECT / "tinymodel.toml")


def record(
    source: str,
    folder: Path,
    scenario: Mapping[str, Any] | None = None,
    manifest: Manifest | None = MODEL,
    name: str = "script.py",
    **options: Any,
) -> StoredRun:
    """Run a script that finds the fixtures' model, and give its record."""
    home = folder / "scripts"
    home.mkdir(parents=True, exist_ok=True)
    script = home / name
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    given = {"environment": {"PYTHONPATH": os.pathsep.join([str(ROOT), str(PROJECT)])}, **(scenario or {})}
    return launch(
        script,
        parse_scenario(dict(given), "the test"),
        manifest,
        options=RunOptions(**options),
        root=folder / "records",
        repository=Repository(home),
    )


def errors(run: StoredRun) -> str:
    return (run.path / "error.txt").read_text()
