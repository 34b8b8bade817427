"""Start a script as a recorded run: make its folder and plan, run it in a process of its own, complete its record."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.manifest import Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.isolation.isolation import Ended, Isolation, Limits, run_isolated
from genwright.inspect.isolation.written_files import written_files
from genwright.inspect.records.new_files import OWN
from genwright.inspect.records.plan_file import REFUSED, RUN, SITE, read_plan
from genwright.inspect.records.record_index import open_index
from genwright.inspect.records.records import RecordFolder, file_sha256
from genwright.inspect.records.research_layout import write_research_layout
from genwright.inspect.records.run_record import begin_run, now, relevant_environment
from genwright.inspect.records.stored_runs import CROSSINGS, StoredRun
from genwright.inspect.run.make_plan import PlannedRun, RunOptions, plan_run

_ROOT = Path(__file__).parents[3]


def launch(
    script: Path,
    scenario: Scenario,
    manifest: Manifest | None,
    *,
    options: RunOptions | None = None,
    root: Path | None = None,
    repository: Repository | None = None,
    isolation: Isolation | None = None,
    echo: bool = False,
    fingerprint: str = "",
) -> StoredRun:
    """Run a script to its end and give its record; without a manifest one is drafted.

    `isolation` says what the run may see and use; with `echo` what it prints is shown, too. `fingerprint` is
    kept in the record, for who wants to know whether the same was run before.
    """
    repository = repository or Repository.around(script)
    options, isolation = options or RunOptions(), isolation or Isolation()
    planned = plan_run(script, manifest, scenario, repository, options)
    readable = [*isolation.readable, *options.folders, *_given_files(scenario)]
    planned = replace(planned, plan=replace(planned.plan, readable=[str(p.absolute()) for p in readable]))
    return _start(planned, repository, root, isolation, echo, fingerprint)


def relaunch(
    run: StoredRun, mode: str, *, root: Path | None = None, isolation: Isolation | None = None, echo: bool = False
) -> StoredRun:
    """Run a recorded run's script again as it was planned, with its results (`replay`) or others like them (`mock`)."""
    plan = read_plan(run.path)
    if plan is None:
        raise UserError(f"{run.name} was not started by `genwright inspect run`; only such a run can be repeated.")
    text = Path(plan.source).read_bytes().decode() if plan.source != plan.script else None
    plan = replace(plan, mode=mode, answered_by=str(run.path))
    seeds = (run.data.get("seeds") or {}).get("found", [])
    environment, chosen = plan.scenario.get("environment", {}), run.data.get("chosen") or []
    planned = PlannedRun(plan, text, plan.argv, seeds, environment, chosen)
    repository = Repository.around(Path(plan.script))
    return _start(planned, repository, root or run.path.parents[1], isolation or Isolation(), echo)


def _start(
    planned: PlannedRun,
    repository: Repository,
    root: Path | None,
    isolation: Isolation,
    echo: bool,
    fingerprint: str = "",
) -> StoredRun:
    folder = RecordFolder.make(planned.plan.project, planned.plan.label, root)
    (folder.path / "work").mkdir()
    plan = planned.write(folder.path)
    environment = _environment(planned, folder.path)
    readable = [*isolation.readable, *map(Path, [*plan.path, *plan.readable]), _ROOT]
    readable += [Path(plan.answered_by)] if plan.answered_by else []
    isolation = replace(
        isolation,
        limits=Limits.of_scenario(plan.scenario.get("limits", {}), folder.path),
        environment=environment | dict(isolation.environment or {}),
        readable=tuple(dict.fromkeys(path.resolve() for path in readable if path.exists())),
    )
    run = begin_run(plan.project, plan.label, plan.mode, plan.script, plan.argv) | {
        "environment": relevant_environment(environment),
        "seeds": {"found": planned.seeds, "set": {"PYTHONHASHSEED": environment["PYTHONHASHSEED"]}},
        "interfaces": {t.name: t.homes[0] if t.homes else "" for t in plan.interfaces},
        "answers": plan.answers,
        "set": plan.overrides,
        "scenario": plan.scenario,
        "chosen": planned.chosen,
        "fingerprint": fingerprint,
        "sha256": file_sha256(Path(plan.script)),
    }
    folder.write_run(run)
    command = [sys.executable, "-m", "genwright.inspect.run.child", str(folder.path), "--", *planned.argv]
    began = time.monotonic()
    try:
        ended = run_isolated(command, folder.path, Path(plan.script).parent, repository.root, isolation, echo=echo)
    except KeyboardInterrupt:
        seconds, written = time.monotonic() - began, written_files(folder.path)
        _complete(folder, run, Ended("killed", seconds=seconds, written=written, message="The run was interrupted."))
        raise
    return _complete(folder, run, ended)


def _environment(planned: PlannedRun, folder: Path) -> dict[str, str]:
    """The run's environment: the scenario's, and what leads each Python process of the run to its plan."""
    inherited = planned.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = [str(SITE), str(_ROOT), *(os.path.abspath(p) for p in inherited.split(os.pathsep) if p)]
    seed = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    return seed | planned.environment | {"PYTHONPATH": os.pathsep.join(path), RUN: f"0 {folder}"}


def _given_files(scenario: Scenario) -> list[Path]:
    """The files that a scenario names, which the run must be able to read."""
    given = [*scenario.argv, *scenario.resources.values(), *map(str, scenario.overrides.values())]
    return [Path(text) for text in given if os.path.isabs(text) and os.path.exists(text)]


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
        "message": ended.message,
    }
    most = run["scenario"].get("limits", {}).get("calls")
    counter = folder.path / "limited.count"
    if most is not None and counter.exists() and counter.stat().st_size > most:
        run |= {"status": "limit", "limit": "calls", "message": f"The run was ended at its limit calls = {most:g}."}
    reason = folder.path / REFUSED
    if reason.exists():
        run |= {"status": "refused", "message": reason.read_text(encoding="utf-8")}
    with open_index(StoredRun(folder.path)) as index:
        if ended.status in ("ended", "failed"):
            run |= _unanswered(StoredRun(folder.path), index.calls(), ended.status)
        run["processes"] = _processes(folder.path, index.processes())
        run["files"] = _outside_calls(folder.path, run, list(ended.written), index.written_files())
    folder.write_run(run)
    stored = StoredRun(folder.path)
    write_research_layout(stored)
    return stored


def _unanswered(run: StoredRun, calls: list[dict[str, Any]], status: str) -> dict[str, str]:
    """The status of a run that ended for want of answers before it reached its model."""
    waited = next((c for c in calls if c["event"] == "end-of-answers"), None)
    if waited is None or any(c["event"] in CROSSINGS for c in calls):
        return {}
    if status == "failed" and (waited["interface"] != "input" or calls[-1]["event"] != "end-of-answers"):
        return {}  # the end of sys.stdin is no error, and what follows it may have failed for any reason
    file = Path(run.call(waited["number"]).file or "").name
    own = ("", "script.py", Path(run.data["script"]).name)  # script.py: the rewritten script
    where = "" if file in own else f" of {file}"
    message = (
        f"No call of the model was recorded, because the scenario has no answer for the input in line "
        f'{waited["line"]}{where}; pass --scenario with a file that has one, as in answers = ["yes"].'
    )
    return {"status": "unanswered", "message": message}


def _processes(folder: Path, calls: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """The processes that took part, each with the end of its last call."""
    noted = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "processes").glob("*.json")]
    return [p | {"ended": calls.get(p["pid"], (0, None))[1]} for p in sorted(noted, key=lambda p: p["started"])]


def _outside_calls(folder: Path, run: dict[str, Any], files: list[dict[str, Any]], calls: set[str]) -> list[Any]:
    """The files that the script wrote, without those that its calls wrote: in its folders, and elsewhere."""
    own = OWN | {run["label"], "outside"}
    for path in sorted(p for p in folder.iterdir() if p.name not in own and not p.name.startswith(".")):
        for each in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
            kept = str(each.relative_to(folder))
            told = {"path": kept, "outside": False, "kept": kept}
            files.append(told | {"size": each.stat().st_size, "sha256": file_sha256(each)})
    return [f for f in files if not f["kept"] or not any(str(p) in calls for p in _with_parents(folder / f["kept"]))]


def _with_parents(path: Path) -> list[Path]:
    return [path, *path.parents]
