"""The fixture scripts and what is expected of each."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.manifest import Manifest, load_manifest, parse_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario, parse_scenario
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

FIXTURES = Path(__file__).parent / "inspect" / "fixtures"
PROJECT = FIXTURES / "project"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict[str, Any]

    @property
    def script(self) -> Path:
        return PROJECT / self.settings.get("script", f"{self.name}.py")

    @property
    def scenario(self) -> Scenario:
        return parse_scenario(self.settings.get("scenario", {}), self.name)

    @property
    def manifest(self) -> Manifest:
        if "interfaces" in self.settings:
            return parse_manifest({"project": "tinymodel", "interface": self.settings["interfaces"]}, self.name)
        return load_manifest(PROJECT / "tinymodel.toml")

    def rewrite(self) -> Rewrite:
        return rewrite(self.script, self.manifest, self.scenario, Repository(PROJECT))


CASES = [Case(name, settings) for name, settings in tomllib.loads((FIXTURES / "cases.toml").read_text()).items()]


@dataclass(frozen=True)
class Run:
    """One run of a script: what the model saw, what was printed, and the records."""

    seen: list[tuple[str, dict[str, Any]]]
    output: str
    records: list[Call]
    folder: Path
    code: int
    errors: str


def run(arguments: list[str], folder: Path, answers: list[str] | None = None, stubs: bool = True) -> Run:
    """Run Python in a folder of its own, with the fixtures' stubs importable unless the real packages are wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "seen.jsonl"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(PROJECT), *([str(FIXTURES / "stubs")] if stubs else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TINYMODEL_LOG": str(log),
        "GENWRIGHT_RECORDS": str(folder / "records"),
        "GENWRIGHT_HOME": str(folder.parent / "home"),
    }
    # What a person would type; a rewritten script must not read it.
    typed = "".join(f"{a}\n" for a in answers) if answers is not None else "typed by nobody\n"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    seen = [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    runs = sorted(p.parent for p in (folder / "records").glob("*/*/run.json")) if (folder / "records").exists() else []
    records = [record for path in runs for record in StoredRun(path).calls()]
    return Run(seen, done.stdout, records, runs[0] if runs else folder, done.returncode, done.stderr)
