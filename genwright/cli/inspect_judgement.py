"""`genwright inspect replay`, `slice`, `diff` and `report`: what recorded runs tell."""

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genwright.cli.app import Json
from genwright.cli.inspect_runs import Records, RunName, ending
from genwright.cli.inspect_scripts import print_json, write
from genwright.errors import UserError
from genwright.inspect.records.stored_runs import open_run

if TYPE_CHECKING:
    from genwright.inspect.report.run_diff import Difference

_SHOWN = 100  # differences

Relative = Annotated[float, typer.Option("--rtol", help="How far numbers may differ, as a share of the larger one.")]
Absolute = Annotated[float, typer.Option("--atol", help="How far numbers may differ at most.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Run also where isolation cannot be enforced.")]


def replay(
    name: RunName,
    mock: Annotated[bool, typer.Option("--mock", help="Make results up in the recorded shapes.")] = False,
    unsafe: Unsafe = False,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Run a recorded script again with its recorded results in the model's place, and compare the records."""
    from genwright.inspect.isolation.isolation import Isolation
    from genwright.inspect.report.run_diff import diff_runs
    from genwright.inspect.run.launch import relaunch

    run = open_run(name, records)
    isolation = Isolation(unsafe=unsafe)
    again = relaunch(run, "mock" if mock else "replay", root=records, isolation=isolation, echo=not as_json)
    found = [] if mock else list(islice(diff_runs(run, again), _SHOWN))
    told = {"run": again.name, "path": str(again.path), "status": again.data["status"], "of": run.name}
    if as_json or again.data["status"] == run.data["status"]:
        _show_differences(found, as_json, told)
    if again.data["status"] == "refused":
        raise UserError(f"{run.name} cannot be {'mocked' if mock else 'replayed'}: {ending(again)}")
    if again.data["status"] != run.data["status"]:
        made = "with results made up" if mock else "with its recorded results"
        raise UserError(f"{run.name}, {made}, did not come to the same end: {again.name} {ending(again)}")
    if found:
        raise UserError(f"{again.name} differs from {run.name} first at {found[0]}.")
    print(f"{again.name}: {again.data['status']}{'' if mock else ', equal records'}", file=sys.stderr)


def slice_run(
    name: RunName,
    number: Annotated[int, typer.Argument(metavar="CALL", help="The number of the call.")],
    out: Annotated[Path | None, typer.Option(help="Write the slice here; else it is printed.")] = None,
    unsafe: Unsafe = False,
    records: Records = None,
) -> None:
    """Write a function that reproduces the arguments of one call without the model; it is proved by running it."""
    from genwright.inspect.isolation.isolation import Isolation
    from genwright.inspect.replay.program_slice import slice_call

    made = slice_call(open_run(name, records), number, Isolation(unsafe=unsafe))
    if out is None:
        print(made.text, end="")
    else:
        write(out, made.text)
    print(f"{made.kept} of {made.total} statements; it gives the recorded arguments", file=sys.stderr)


def diff(
    left: RunName,
    right: RunName,
    relative: Relative = 0.0,
    absolute: Absolute = 0.0,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Compare two runs, call by call; exits with 1 if they differ."""
    from genwright.inspect.report.run_diff import Tolerance, diff_runs

    one, other = (open_run(name, records) for name in (left, right))
    found = list(islice(diff_runs(one, other, Tolerance(relative, absolute)), _SHOWN))
    _show_differences(found, as_json)
    if found:
        raise typer.Exit(1)


def report(
    name: RunName,
    out: Annotated[Path | None, typer.Option(help="The HTML page; by default report.html in the run's folder.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the judgement as JUnit XML, too.")] = None,
    commentator: Annotated[
        str, typer.Option(help="A model that adds prose: URL#MODEL of an OpenAI-compatible endpoint, or a checkpoint.")
    ] = "",
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Write a run's page and its findings; exits with 1 if the run failed or an assertion does not hold."""
    from genwright.inspect.report.assertions import check_assertions
    from genwright.inspect.report.commentator import comment
    from genwright.inspect.report.findings import find
    from genwright.inspect.report.junit import junit as junit_text
    from genwright.inspect.report.run_report import report as report_page

    run = open_run(name, records)
    findings = find(run)
    outcomes = check_assertions(run, [f.kind for f in findings])
    prose = ""
    try:
        prose = comment(run, findings, outcomes, commentator) if commentator else ""
    except Exception as error:  # whatever goes wrong with a model, nothing depends on it
        print(f"genwright: {error if isinstance(error, UserError) else f'No comment: {error!r}.'}", file=sys.stderr)
    page = out or run.path / "report.html"
    write(page, report_page(run, findings, outcomes, commentator, prose))
    if junit is not None:
        write(junit, junit_text(run, findings, outcomes))
    if as_json:
        told = {"run": run.name, "status": run.data.get("status"), "report": str(page), "comment": prose}
        told |= {"findings": [vars(f) for f in findings], "assertions": [vars(o) for o in outcomes]}
        print_json(told)
    else:
        for finding in findings:
            print(finding)
        print(page, file=sys.stderr)
    wrong = next((o for o in outcomes if not o.holds), None)
    if run.data.get("status") != "ended":
        raise UserError(f"{run.name} has the status {run.data.get('status')}.")
    if wrong is not None:
        raise UserError(f"The assertion `{wrong.assertion}` does not hold: {wrong.reason}")


def add_to(app: typer.Typer) -> None:
    """Make the verbs commands of `genwright inspect`."""
    app.command()(replay)
    app.command("slice")(slice_run)
    app.command()(diff)
    app.command()(report)


def _show_differences(found: "list[Difference]", as_json: bool, told: dict[str, str] | None = None) -> None:
    if as_json:
        print_json({**(told or {}), "differences": [vars(d) for d in found]})
        return
    for difference in found:
        print(difference)
    if len(found) == _SHOWN:
        print(f"Only the first {_SHOWN} differences are shown.", file=sys.stderr)
