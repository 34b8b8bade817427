"""`genwright inspect run`, `list` and `show`: recorded runs."""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genwright.arguments import counted
from genwright.cli.app import Json
from genwright.cli.inspect_scripts import (
    Ask,
    ManifestFile,
    NoSamples,
    Root,
    Row,
    ScenarioFile,
    Scripts,
    expand,
    for_each,
    open_repository,
    open_scenario,
    print_json,
)
from genwright.errors import UserError
from genwright.inspect.analysis.source_files import read_bytes
from genwright.inspect.records.record_index import open_index
from genwright.inspect.records.stored_runs import StoredRun, open_run, records_root, stored_runs

if TYPE_CHECKING:
    from genwright.inspect.analysis.manifest import Manifest
    from genwright.inspect.analysis.repository import Repository

_SHOWN = 100  # calls that `show` lists
_OFFLINE = ("Network is unreachable", "name resolution", "Name or service not known", "Failed to resolve")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_SKIPPED = "it already ran to its end"

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

    if rewrite and mock:
        raise UserError("Pass only one of --rewrite and --mock.")
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
    isolation = Isolation(network=network, unsafe=unsafe, readable=_existing(read or []))
    inputs = _fingerprint({"scenario": scenario, "manifest": manifest}, repr((options.mode, label)))
    echo = len(files) == 1 and not as_json
    start = partial(launch, scenario=given, options=options, root=records, isolation=isolation, echo=echo)

    def one(script: Path) -> Row:
        own = f"{inputs}{_fingerprint({'script': script}, str(script.resolve()))}"
        if resume and _is_done(script, own, records):
            return {"script": str(script), "skipped": _SKIPPED}
        repository = open_repository(script, repo)
        known = _manifest(manifest, repository, options.folders)
        made = start(script, manifest=known, repository=repository, fingerprint=own)
        return _judged(script, made, network)

    try:
        for_each("Running", files, one, _show_row, as_json)
    except KeyboardInterrupt:
        print("\ngenwright: Interrupted; `genwright inspect show last` tells what was recorded.", file=sys.stderr)
        raise


def list_runs(records: Records = None, as_json: Json = False) -> None:
    """List the recorded runs, the last one last."""
    rows = [_row(run) for run in stored_runs(records)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print(f"There is no run in {records or records_root()}.", file=sys.stderr)
    for row in rows:
        seconds = f"{row['seconds']:.2f} s" if row["seconds"] is not None else "-"
        print(f"{row['run']}  {row['status']}  {_calls(row)}  {seconds}  {row['started']}  {row['script']}")


def show(
    name: RunName,
    number: Annotated[int | None, typer.Argument(metavar="CALL", help="The number of one call.")] = None,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Show a run and its calls, or one call."""
    run = open_run(name, records)
    if number is not None:
        print_json(vars(run.call(number)))
        return
    with open_index(run) as index:
        calls = index.calls()
    if as_json:
        print_json({**run.data, "run": run.name, "path": str(run.path), "calls": calls})
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


def _existing(paths: list[Path]) -> tuple[Path, ...]:
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise UserError(f"--read must be a file or folder, and there is no {missing[0]}.")
    return tuple(path.absolute() for path in paths)


def _is_done(script: Path, fingerprint: str, records: Path | None) -> bool:
    """Whether a script already ran to its end, with the same inputs, and its assertions hold."""
    same = (run for run in stored_runs(records) if run.data.get("fingerprint") == fingerprint)
    return any("error" not in _judged(script, run, network=True) for run in same)


def _show_row(script: Path, row: Row) -> None:
    if "skipped" in row:
        print(f"{script}: left out, because {row['skipped']}", file=sys.stderr)
    else:
        print(f"{row['run']}: {row['status']}, {_calls(row)}, {row['seconds']:.2f} s", file=sys.stderr)


def _calls(row: Row) -> str:
    return counted(row["calls"], "call")


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
        return row | {"error": f"{script}: {ending(run)}{hint}"}
    if wrong is not None:
        return row | {"error": f"{script}: the assertion `{wrong.assertion}` does not hold: {wrong.reason}"}
    return row


def _row(run: StoredRun) -> Row:
    data = run.data
    keys = ("status", "mode", "exit_code", "limit", "started", "seconds", "script", "unenforced")
    return {"run": run.name, "path": str(run.path), "calls": run.count(), **{k: data.get(k) for k in keys}}


def ending(run: StoredRun) -> str:
    """How a run ended, as a part of a sentence."""
    data = run.data
    if data["status"] == "failed":
        lines = run.printed("error").strip().splitlines()
        # An exception's message may have several lines, of which the first one names it.
        said = next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "")
        return f"failed with exit code {data['exit_code']}" + (f": {said}" if said else "")
    return str(data.get("message") or data["status"])


def _fingerprint(files: dict[str, Path | None], rest: str) -> str:
    """What tells whether a run was the same: the content of its files, and the rest."""
    digest = hashlib.sha256(rest.encode())
    for what, path in files.items():
        digest.update(read_bytes(path, what) if path else b"")
    return digest.hexdigest()[:16]
