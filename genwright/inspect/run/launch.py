"""Start a script as a recorded run: make its folder and plan, run it in a process of its own, complete its record."""

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.manifest import Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.run.children import SITE
from genwright.inspect.run.new_files import OWN
from genwright.inspect.run.plan import RUN
from genwright.inspect.run.record_index import open_index
from genwright.inspect.run.records import RecordFolder
from genwright.inspect.run.run_plan import Choices, PlannedRun, plan_run
from genwright.inspect.run.run_record import begin_run, now, telling
from genwright.inspect.run.stored_runs import StoredRun

_ROOT = Path(__file__).parents[3]
_HASHED = 1 << 26


@dataclass(frozen=True)
class Ended:
    status: str
    exit_code: int | None
    limit: str | None
    seconds: float
    peak_memory: int
    unenforced: list[str] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)


def launch(
    script: Path,
    scenario: Scenario,
    manifest: Manifest | None,
    *,
    choices: Choices | None = None,
    root: Path | None = None,
    repository: Repository | None = None,
    quiet: bool = False,
) -> StoredRun:
    """Run a script to its end and give its record; without a manifest one is drafted."""
    planned = plan_run(script, manifest, scenario, repository or Repository.around(script), choices or Choices())
    folder = RecordFolder.make(planned.plan.project, planned.plan.label, root)
    (folder.path / "work").mkdir()
    plan = planned.write(folder.path)
    environment = _environment(planned, folder.path)
    run = begin_run(plan.project, plan.label, plan.mode, plan.script, plan.argv) | {
        "environment": telling(environment),
        "seeds": {"found": planned.seeds, "set": {"PYTHONHASHSEED": environment["PYTHONHASHSEED"]}},
        "interfaces": {t.name: t.homes[0] if t.homes else "" for t in plan.interfaces},
        "answers": plan.answers,
        "set": plan.overrides,
        "scenario": plan.scenario,
        "chosen": planned.chosen,
        "sha256": digest(Path(plan.script)),
    }
    folder.write_run(run)
    command = [sys.executable, "-m", "genwright.inspect.run.child", str(folder.path)]
    return _complete(folder, run, _run(command, folder.path, environment, quiet))


def digest(path: Path) -> str | None:
    """The sha256 of a file; None if it is large or cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.stat().st_size <= _HASHED else None
    except OSError:
        return None


def _environment(planned: PlannedRun, folder: Path) -> dict[str, str]:
    """The run's environment: the scenario's, and what leads each Python process of the run to its plan."""
    inherited = os.environ | planned.environment
    path = [str(SITE), str(_ROOT), inherited.get("PYTHONPATH", "")]
    return {
        "PYTHONHASHSEED": "0",
        **inherited,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        RUN: f"0 {folder}",
    }


def _complete(folder: RecordFolder, run: dict[str, Any], ended: Ended) -> StoredRun:
    """Write how a run ended, its processes and the files that no call wrote."""
    run |= {
        "ended": now(),
        "seconds": round(ended.seconds, 6),
        "status": ended.status,
        "exit_code": ended.exit_code,
        "limit": ended.limit,
        "unenforced": ended.unenforced,
        "peak_memory": ended.peak_memory,
    }
    most = run["scenario"].get("limits", {}).get("calls")
    counter = folder.path / "limited.count"
    if most is not None and counter.exists() and counter.stat().st_size > most:
        run |= {"status": "limit", "limit": "calls"}
    with open_index(StoredRun(folder.path)) as index:
        run["processes"] = _processes(folder.path, index.processes())
        run["files"] = [*_left_over(folder.path, index.written_files(), run["label"]), *ended.written]
    folder.write_run(run)
    return StoredRun(folder.path)


def _processes(folder: Path, calls: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """The processes that took part, each with the end of its last call."""
    noted = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "processes").glob("*.json")]
    return [p | {"ended": calls.get(p["pid"], (0, None))[1]} for p in sorted(noted, key=lambda p: p["started"])]


def _left_over(folder: Path, written: set[str], label: str) -> list[dict[str, Any]]:
    """The files in the run's folder that the script wrote outside of its calls."""
    found = []
    for base in (folder, folder / "work"):
        for path in sorted(base.rglob("*")):
            top = path.relative_to(base).parts[0]
            own = base == folder and top in OWN | {label}
            if own or path.is_symlink() or not path.is_file():
                continue
            if not any(str(p) in written for p in (path, *path.parents)):
                size = path.stat().st_size
                told = {"path": str(path.relative_to(folder)), "size": size, "sha256": digest(path), "outside": False}
                found.append(told)
    return found


def _run(command: list[str], folder: Path, environment: dict[str, str], quiet: bool) -> Ended:
    started = time.monotonic()
    with (folder / "output.txt").open("wb") as output, (folder / "error.txt").open("wb") as error:
        done = subprocess.run(
            command, cwd=folder / "work", env=environment, stdout=output, stderr=error, stdin=subprocess.DEVNULL
        )
    status = "ended" if done.returncode == 0 else "failed" if done.returncode > 0 else "killed"
    return Ended(status, done.returncode, None, time.monotonic() - started, 0)
