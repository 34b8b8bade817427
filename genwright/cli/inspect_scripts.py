"""What the verbs of `genwright inspect` share: scripts and what is known about them, batches, and output."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.progress import bar
from genwright.errors import UserError

if TYPE_CHECKING:
    from genwright.inspect.analysis.manifest import Manifest
    from genwright.inspect.analysis.repository import Repository
    from genwright.inspect.analysis.scenario import Scenario

Row = dict[str, Any]  # the JSON object of one script
Scripts = Annotated[
    list[Path], typer.Argument(metavar="SCRIPT...", help="The scripts or notebooks, or folders of them.")
]
ManifestFile = Annotated[Path | None, typer.Option("--manifest", help="The project's interfaces; drafted by default.")]
ScenarioFile = Annotated[Path | None, typer.Option("--scenario", help="The inputs of the unattended run, as TOML.")]
NoSamples = Annotated[bool, typer.Option("--no-samples", help="Leave placeholder paths as they are.")]
Ask = Annotated[bool, typer.Option("--ask", help="Stop where a value is required, instead of choosing one.")]
Root = Annotated[Path | None, typer.Option("--repo", help="The repository; by default found from the script's path.")]


def open_repository(script: Path, root: Path | None) -> "Repository":
    """The repository that is given, or the one around the script."""
    from genwright.inspect.analysis.repository import Repository

    if root is not None and not root.is_dir():
        raise UserError(f"--repo must be a folder, not {root}.")
    return Repository(root) if root else Repository.around(script)


def open_script(script: Path, manifest: Path | None, root: Path | None) -> "tuple[Repository, Manifest]":
    """The script's repository, and its manifest from a file or drafted."""
    from genwright.inspect.analysis.border import draft_for_script
    from genwright.inspect.analysis.manifest import load_manifest

    repository = open_repository(script, root)
    source = repository.source(script)
    return repository, load_manifest(manifest) if manifest else draft_for_script(repository, script, source)


def open_scenario(file: Path | None) -> "Scenario":
    """The scenario that is given, or an empty one."""
    from genwright.inspect.analysis.scenario import Scenario, load_scenario

    return load_scenario(file) if file else Scenario()


def for_each(
    title: str, files: list[Path], one: Callable[[Path], Row], show: Callable[[Path, Row], None], as_json: bool
) -> None:
    """Apply `one` to each script and show its row; of several scripts a failing one does not stop the others.

    A script has failed if `one` raises a UserError or its row has an `error`.
    """
    rows: list[Row] = []
    with bar(title, show=len(files) > 1) as progress:
        for done, script in enumerate(files):
            progress(done, len(files))
            try:
                rows.append(one(script))
                if not as_json:
                    show(script, rows[-1])
            except UserError as error:
                is_named = len(files) == 1 or str(script) in str(error)
                rows.append({"script": str(script), "error": str(error) if is_named else f"{script}: {error}"})
            if "error" in rows[-1] and len(files) > 1:
                print(f"genwright: {rows[-1]['error']}", file=sys.stderr)
    if as_json:
        print_json(rows if len(files) > 1 else rows[0])
    failed = [row["error"] for row in rows if "error" in row]
    if failed:
        raise UserError(failed[0] if len(files) == 1 else f"{len(failed)} of {len(files)} scripts failed.")


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a file and its folder; the text keeps its line endings."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding, newline="")
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be written: {reason}.") from error


def print_json(data: Any) -> None:
    """Print what a program reads."""
    print(json.dumps(data, ensure_ascii=False, indent=1, default=str))


def expand(scripts: list[Path]) -> list[Path]:
    """The scripts, with those of folders, each once; copies in the records of runs are left out."""
    from genwright.inspect.records.plan_file import PLAN
    from genwright.inspect.records.stored_runs import RUN_FILE

    files: list[Path] = []
    for path in scripts:
        found = sorted([*path.rglob("*.py"), *path.rglob("*.ipynb")]) if path.is_dir() else [path]
        plans = path.rglob(PLAN) if path.is_dir() else ()
        runs = {plan.parent for plan in plans if (plan.parent / RUN_FILE).is_file()}
        files += [file for file in found if runs.isdisjoint(file.parents)]
    if not files:
        raise UserError(f"There is no Python script or notebook in {scripts[0]}.")
    return list(dict.fromkeys(files))
