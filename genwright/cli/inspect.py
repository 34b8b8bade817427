"""`genwright inspect`: understand a model repository's script and rewrite it into a recorded, unattended run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli.app import new_app
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.inspect.explain import explain as explain_text
from genwright.inspect.explain import explain_data
from genwright.inspect.interfaces import document, draft, draft_for_script, project_name, rank
from genwright.inspect.locate import locate as locate_sites
from genwright.inspect.locate import parse
from genwright.inspect.manifest import Manifest, load_manifest
from genwright.inspect.repository import Repository, read_source
from genwright.inspect.rewrite import Rewrite
from genwright.inspect.rewrite import rewrite as rewrite_script
from genwright.inspect.scenario import Scenario, load_scenario

app = new_app(no_args_is_help=True, help=__doc__)

Scripts = Annotated[list[Path], typer.Argument(metavar="SCRIPT...", help="The scripts, or folders of scripts.")]
ManifestFile = Annotated[
    Path | None, typer.Option("--manifest", help="The project's interfaces; drafted from the repository when left out.")
]
ScenarioFile = Annotated[Path | None, typer.Option("--scenario", help="What the unattended run is given, in TOML.")]
Root = Annotated[
    Path | None, typer.Option("--repo", help="The repository's root; found above the script when left out.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]


@app.command()
def interfaces(
    repo: Annotated[Path, typer.Argument(help="The repository.")],
    out: Annotated[Path | None, typer.Option(help="Write the manifest here (.toml or .json).")] = None,
    doc: Annotated[Path | None, typer.Option(help="Write the interface document here.")] = None,
    as_json: Json = False,
) -> None:
    """Draft a manifest: the repository's likeliest interfaces, ranked."""
    if not repo.is_dir():
        raise UserError(f"{repo} is no folder; `inspect interfaces` takes a repository.")
    repository = Repository(repo)
    candidates = rank(repository)
    manifest = draft(repository, project_name(repository), candidates)
    data = json.dumps(manifest.to_dict(), ensure_ascii=False, indent=1) + "\n"
    if out is not None:
        _write(out, data if out.suffix == ".json" else manifest.to_toml())
    if doc is not None:
        _write(doc, document(manifest, candidates))
    if out is None:
        print(data if as_json else manifest.to_toml(), end="")


@app.command()
def locate(scripts: Scripts, manifest: ManifestFile = None, repo: Root = None, as_json: Json = False) -> None:
    """Show every call and construction site of the interfaces, and what could not be resolved."""

    def one(script: Path) -> dict[str, Any]:
        repository, source = _repository(script, repo), read_source(script)
        tree = parse(source, script.name)
        known = _manifest(manifest, repository, script, source)
        return locate_sites(tree, known, repository.module(script), repository.package(script)).to_dict()

    def show(script: Path, found: dict[str, Any]) -> None:
        print(script)
        for site in found["sites"]:
            on = f" on {site['object']}" if "object" in site else ""
            print(f"  {site['line']}: {site['interface']} ({site['kind']}{on}): {', '.join(site['arguments'])}")
        for gap in found["unresolved"]:
            print(f"  {gap['line']}: {gap['text']}: not resolved: {gap['reason']}")

    _batch(scripts, one, show, as_json)


@app.command()
def rewrite(
    scripts: Scripts,
    out: Annotated[Path, typer.Option(help="The folder for the rewritten scripts.")] = Path("rewritten"),
    manifest: ManifestFile = None,
    scenario: ScenarioFile = None,
    repo: Root = None,
    as_json: Json = False,
) -> None:
    """Rewrite scripts so that they run unattended and every interface call is recorded; the diff is shown."""
    given = load_scenario(scenario) if scenario else Scenario()
    files = _expand(scripts)

    def one(script: Path) -> dict[str, Any]:
        made, _ = _rewrite(script, manifest, given, repo)
        if made.missing:
            raise UserError(f"{script.name} needs values that the scenario does not give: {'; '.join(made.missing)}.")
        target = out / _relative(script, files)
        if target.resolve() == script.resolve():
            raise UserError(f"{target} is the original itself; choose another folder with --out.")
        _write(target, made.text)
        return {**made.to_dict(), "written": str(target), "diff": made.diff}

    def show(script: Path, result: dict[str, Any]) -> None:
        print(result["diff"])
        sites = len(result["sites"])
        print(f"{result['written']}: {sites} sites, {result['untouched']:.1%} of the lines untouched", file=sys.stderr)
        for gap in result["unresolved"]:
            print(f"  line {gap['line']}: {gap['text']}: not resolved: {gap['reason']}", file=sys.stderr)

    _batch(scripts, one, show, as_json)


@app.command()
def explain(
    scripts: Scripts,
    manifest: ManifestFile = None,
    scenario: ScenarioFile = None,
    repo: Root = None,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    as_json: Json = False,
) -> None:
    """Explain scripts in the stages of the Inspection traces."""
    given = load_scenario(scenario) if scenario else Scenario()

    def one(script: Path) -> dict[str, Any]:
        made, known = _rewrite(script, manifest, given, repo)
        if as_json:
            return explain_data(made, known.project, given)
        return {"text": explain_text(made, known.project, given, lang)}

    _batch(scripts, one, lambda _, result: print(result["text"], end=""), as_json)


def _rewrite(script: Path, manifest: Path | None, scenario: Scenario, root: Path | None) -> tuple[Rewrite, Manifest]:
    repository = _repository(script, root)
    known = _manifest(manifest, repository, script, read_source(script))
    return rewrite_script(script, known, scenario, repository), known


def _repository(script: Path, root: Path | None) -> Repository:
    if root is not None and not root.is_dir():
        raise UserError(f"--repo {root} is no folder.")
    return Repository(root) if root else Repository.around(script)


def _manifest(path: Path | None, repository: Repository, script: Path, source: str) -> Manifest:
    return load_manifest(path) if path else draft_for_script(repository, script, source)


def _expand(scripts: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in scripts:
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{scripts[0]} holds no Python script.")
    return list(dict.fromkeys(files))


def _relative(script: Path, files: list[Path]) -> Path:
    """A script's place below the output folder: its name, or its path where names are the same."""
    same = [f for f in files if f.name == script.name]
    return Path(script.name) if len(same) == 1 else Path("_".join(script.resolve().parts[-3:]))


def _batch(
    scripts: list[Path],
    one: Callable[[Path], dict[str, Any]],
    show: Callable[[Path, dict[str, Any]], None],
    as_json: bool,
) -> None:
    """Do one thing to each script; one failure does not stop the others, and is told at the end of its own."""
    files = _expand(scripts)
    if len(files) == 1:
        result = one(files[0])
        print(json.dumps(result, ensure_ascii=False, indent=1)) if as_json else show(files[0], result)
        return
    results: list[dict[str, Any]] = []
    failures = 0
    with bar("Inspecting") as progress:
        for done, script in enumerate(files):
            progress(done, len(files))
            try:
                results.append(one(script))
                if not as_json:
                    show(script, results[-1])
            except UserError as error:
                failures += 1
                results.append({"script": str(script), "error": str(error)})
                print(f"genwright: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(results, ensure_ascii=False, indent=1))
    if failures:
        raise UserError(f"{failures} of {len(files)} scripts failed.")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Line ends are the script's own.
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
