"""`genwright inspect run`, `list` and `show`: recorded runs."""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import Json
from genwright.cli.inspect_scripts import (
    Ask,
    ManifestFile,
    NoSamples,
    Root,
    ScenarioFile,
    Scripts,
    expand,
    open_repository,
    open_scenario,
)
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.inspect.analysis.source_files import read_bytes
from genwright.inspect.records.record_index import open_index
from genwright.inspect.records.stored_runs import StoredRun, open_run, stored_runs

if TYPE_CHECKING:
    from genwright.inspect.analysis.manifest import Manifest
    from genwright.inspect.analysis.repository import Repository

_SHOWN = 100  # calls that `show` lists
_OFFLINE = ("Network is unreachable", "name resolution", "Name or service not known", "Failed to resolve")
_SKIPPED = "it already ran to its end"

Row = dict[str, Any]
Records = Annotated[Path | None, typer.Option(help="The folder of runs; GENWRIGHT_RECORDS, or ./records.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run: its folder, NAME/LABEL-0001, or `last`.")]


def run(
    scripts: Scripts,
    manifest: ManifestFile = None,
    scenario: ScenarioFile = None,
    repo: Root = None,
    label: Annotated[str, typer.Option(help="What the run's folder is called.")] = "simulation",
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Run the rewritten script instead of the original.")
    ] = False,
    mock: Annotated[bool, typer.Option("--mock", help="Make results up instead of calling the model.")] = False,
    no_samples: NoSamples = False,
    ask: Ask = False,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out scripts that already ran to their end.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Let the script use the network.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Run also where isolation cannot be enforced.")] = False,
    read: Annotated[list[Path] | None, typer.Option(help="Another folder or file that the script may read.")] = None,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Run scripts unattended, each in a process of its own, and record every call of the interfaces."""
    from genwright.dropin.run import folder as dropin_folder
    from genwright.inspect.isolation.isolation import Isolation
    from genwright.inspect.run.launch import launch
    from genwright.inspect.run.make_plan import RunOptions

    given = open_scenario(scenario)
    files = expand(scripts)
    options = RunOptions(
        mode="mock" if mock else "rewrite" if rewrite else "intercept",
        label=label,
        samples=not no_samples,
        ask=ask,
        path=[dropin_folder(given.dropin)] if given.dropin else [],
        folders=[scenario.resolve().parent] if scenario else [],
    )
    isolation = Isolation(network=network, unsafe=unsafe, readable=tuple(path.absolute() for path in read or []))
    inputs = _fingerprint({"scenario": scenario, "manifest": manifest}, repr((options.mode, label)))
    echo = len(files) == 1 and not as_json
    start = partial(launch, scenario=given, options=options, root=records, isolation=isolation, echo=echo)

    def one(script: Path) -> StoredRun | None:
        own = f"{inputs}{_fingerprint({'script': script}, str(script.resolve()))}"
        if resume and _has_ended(own, records):
            return None
        repository = open_repository(script, repo)
        known = _manifest(manifest, repository, options.folders)
        return start(script, manifest=known, repository=repository, fingerprint=own)

    try:
        _each(files, one, as_json, network)
    except KeyboardInterrupt:
        print("\ngenwright: Interrupted; `genwright inspect show last` tells what was recorded.", file=sys.stderr)
        raise


def list_runs(records: Records = None, as_json: Json = False) -> None:
    """List the recorded runs, the last one last."""
    rows = [_row(run) for run in stored_runs(records)]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    for row in rows:
        seconds = f"{row['seconds']:.2f} s" if row["seconds"] is not None else "-"
        print(f"{row['run']}  {row['status']}  {row['calls']} calls  {seconds}  {row['started']}  {row['script']}")


def show(
    name: RunName,
    number: Annotated[int | None, typer.Argument(metavar="CALL", help="The number of one call.")] = None,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Show a run and its calls, or one call."""
    run = open_run(name, records)
    if number is not None:
        print(json.dumps(vars(run.call(number)), ensure_ascii=False, indent=1, default=str))
        return
    with open_index(run) as index:
        calls = index.calls()
    if as_json:
        data = {**run.data, "run": run.name, "path": str(run.path), "calls": calls}
        print(json.dumps(data, ensure_ascii=False, indent=1))
        return
    told = {k: run.data.get(k) for k in ("script", "argv", "mode", "commit", "python", "started", "seconds", "seeds")}
    print(f"{run.name}: {ending(run)}")
    for key, value in told.items():
        print(f"  {key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    for file in run.data.get("files", []):
        print(f"  wrote {file['path']}{' (outside its folder)' if file['outside'] else ''}: {file['size']} bytes")
    for call in calls[:_SHOWN]:
        line = f"line {call['line']}" if call["line"] else ""
        seconds = f"{call['seconds']:.6f} s" if call["seconds"] is not None else ""
        print(f"  {call['number']}  {call['event']} {call['interface']}  {call['status']}  {seconds}  {line}")
    if len(calls) > _SHOWN:
        print(f"  and {len(calls) - _SHOWN} more; --json lists them all")


def add_to(app: typer.Typer) -> None:
    """Make the verbs commands of `genwright inspect`."""
    app.command()(run)
    app.command("list")(list_runs)
    app.command()(show)


def _manifest(file: Path | None, repository: "Repository", folders: Sequence[Path]) -> "Manifest | None":
    """The manifest that is given, or one of the project's name: beside the scenario, in this folder, or with us."""
    from genwright.inspect.analysis.border import project_name
    from genwright.inspect.analysis.manifest import load_manifest
    from genwright.inspect.run.dispatch import MANIFESTS
    from genwright.inspect.run.named_manifests import find_manifest

    return load_manifest(file) if file else find_manifest(project_name(repository), [*folders, Path.cwd(), MANIFESTS])


def _has_ended(fingerprint: str, records: Path | None) -> bool:
    runs = (run.data for run in stored_runs(records))
    return any(data.get("fingerprint") == fingerprint and data["status"] == "ended" for data in runs)


def _each(files: list[Path], one: Callable[[Path], StoredRun | None], as_json: bool, network: bool) -> None:
    """Run each script; a failing one does not stop the others, and makes the command fail."""
    rows: list[Row] = []
    with bar("Running", show=len(files) > 1) as progress:
        for done, script in enumerate(files):
            progress(done, len(files))
            try:
                made = one(script)
                rows.append(_judged(script, made, network) if made else {"script": str(script), "skipped": _SKIPPED})
            except UserError as error:
                rows.append({"script": str(script), "error": str(error)})
            if not as_json and "run" in rows[-1]:
                print("{run}: {status}, {calls} calls, {seconds:.2f} s".format(**rows[-1]), file=sys.stderr)
            if not as_json and "skipped" in rows[-1]:
                print(f"{script.name}: left out, because {_SKIPPED}", file=sys.stderr)
            if "error" in rows[-1] and len(files) > 1:
                print(f"genwright: {rows[-1]['error']}", file=sys.stderr)
    if as_json:
        print(json.dumps(rows if len(files) > 1 else rows[0], ensure_ascii=False, indent=1))
    failed = [row["error"] for row in rows if "error" in row]
    if failed:
        raise UserError(failed[0] if len(files) == 1 else f"{len(failed)} of {len(files)} scripts failed.")


def _judged(script: Path, run: StoredRun, network: bool) -> Row:
    """A run's row, with the assertions of its scenario, and the error if it did not end well or one does not hold."""
    from genwright.inspect.report.assertions import check_assertions
    from genwright.inspect.report.findings import find

    asserted = bool(run.data["scenario"].get("assertions"))
    outcomes = check_assertions(run, [f.kind for f in find(run)]) if asserted else []
    row = _row(run) | {"assertions": [vars(o) for o in outcomes]}
    wrong = next((o for o in outcomes if not o.holds), None)
    if run.data["status"] != "ended":
        offline = not network and any(words in ending(run) for words in _OFFLINE)
        hint = " (a run has no network unless you pass --network)" if offline else ""
        return row | {"error": f"{script.name}: {ending(run)}{hint}"}
    if wrong is not None:
        return row | {"error": f"{script.name}: the assertion `{wrong.assertion}` does not hold: {wrong.reason}"}
    return row


def _row(run: StoredRun) -> Row:
    data = run.data
    keys = ("status", "mode", "exit_code", "limit", "started", "seconds", "script", "unenforced")
    return {"run": run.name, "path": str(run.path), "calls": run.count(), **{k: data.get(k) for k in keys}}


def ending(run: StoredRun) -> str:
    """How a run ended, as a part of a sentence."""
    data = run.data
    if data["status"] == "failed":
        error = run.path / "error.txt"
        lines = error.read_text(errors="replace").strip().splitlines() if error.is_file() else []
        return f"failed with exit code {data['exit_code']}" + (f": {lines[-1]}" if lines else "")
    return str(data.get("message") or data["status"])


def _fingerprint(files: dict[str, Path | None], rest: str) -> str:
    """What tells whether a run was the same: the content of its files, and the rest."""
    digest = hashlib.sha256(rest.encode())
    for what, path in files.items():
        digest.update(read_bytes(path, what) if path else b"")
    return digest.hexdigest()[:16]
