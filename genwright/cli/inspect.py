"""`genwright inspect`: analyse a model repository's script and rewrite it to run unattended and be recorded."""

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from genwright.arguments import counted
from genwright.cli import inspect_judgement, inspect_runs
from genwright.cli.app import Json, new_app
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
    open_scenario,
    open_script,
    write,
)
from genwright.cli.progress import bar
from genwright.errors import UserError

app = new_app(no_args_is_help=True, help=__doc__)


@app.command()
def interfaces(
    repo: Annotated[Path, typer.Argument(help="The repository.")],
    out: Annotated[Path | None, typer.Option(help="Write the manifest here (.toml or .json).")] = None,
    doc: Annotated[Path | None, typer.Option(help="Write the interface document here.")] = None,
    as_json: Json = False,
) -> None:
    """Draft a manifest of the repository's most likely interfaces, ranked."""
    from genwright.inspect.analysis.border import project_name
    from genwright.inspect.analysis.interfaces import document, draft, rank
    from genwright.inspect.analysis.repository import Repository

    if not repo.is_dir():
        raise UserError(f"{repo} is not a folder; pass a repository.")
    repository = Repository(repo)
    with _uncollected(), bar("Reading", show=len(repository.files) > 100) as progress:
        candidates = rank(repository, progress=progress)
    manifest = draft(repository, project_name(repository), candidates)
    data = json.dumps(manifest.to_dict(), ensure_ascii=False, indent=1) + "\n"
    if out is not None:
        write(out, data if out.suffix == ".json" else manifest.to_toml())
    if doc is not None:
        write(doc, document(manifest, candidates))
    if out is None:
        print(data if as_json else manifest.to_toml(), end="")


@app.command()
def locate(scripts: Scripts, manifest: ManifestFile = None, repo: Root = None, as_json: Json = False) -> None:
    """Show each call and construction of the interfaces, and what could not be resolved."""
    from genwright.inspect.analysis.border import no_sites
    from genwright.inspect.analysis.locate import locate as locate_sites
    from genwright.inspect.analysis.locate import parse

    @_uncollected()
    def one(script: Path) -> Row:
        repository, known = open_script(script, manifest, repo)
        tree = parse(repository.source(script), script.name)
        found = locate_sites(tree, known, repository.module(script), repository.package(script))
        if not found.sites:
            raise no_sites(repository, script, known, found)
        return {"script": str(script), **found.to_dict()}

    def show(script: Path, found: Row) -> None:
        print(script)
        for site in found["sites"]:
            on = f" on {site['object']}" if "object" in site else ""
            print(f"  {site['line']}: {site['interface']} ({site['kind']}{on}): {', '.join(site['arguments'])}")
        for gap in found["unresolved"]:
            print(f"  {gap['line']}: {gap['text']}: not resolved: {gap['reason']}")

    for_each("Inspecting", expand(scripts), one, show, as_json)


@app.command()
def rewrite(
    scripts: Scripts,
    out: Annotated[Path, typer.Option(help="The folder for the rewritten scripts.")] = Path("rewritten"),
    manifest: ManifestFile = None,
    scenario: ScenarioFile = None,
    repo: Root = None,
    no_samples: NoSamples = False,
    ask: Ask = False,
    scenario_out: Annotated[Path | None, typer.Option(help="Write the scenario of the run here, to edit.")] = None,
    as_json: Json = False,
) -> None:
    """Rewrite scripts to run unattended and record every interface call; prints the diff."""
    from genwright.inspect.analysis.scenario import to_toml
    from genwright.inspect.analysis.source_files import encoding_of
    from genwright.inspect.rewrite.rewrite import rewrite as rewrite_script

    given = open_scenario(scenario)
    files = expand(scripts)
    if scenario_out is not None and len(files) > 1:
        raise UserError(f"--scenario-out writes the scenario of one script, not of {len(files)}.")

    @_uncollected()
    def one(script: Path) -> Row:
        repository, known = open_script(script, manifest, repo)
        made = rewrite_script(script, known, given, repository, samples=not no_samples, ask=ask, must_call=True)
        if made.missing:
            raise UserError(f"{script.name} needs values that the scenario lacks: {'; '.join(made.missing)}.")
        target = out / _relative(script, files)
        if target.resolve() == script.resolve():
            raise UserError(f"{target} is the original script; choose another folder with --out.")
        write(target, made.text, encoding_of(made.text))
        if scenario_out is not None:
            write(scenario_out, to_toml(made.scenario, [str(c) for c in made.chosen]))
        return {**made.to_dict(), "written": str(target), "diff": made.diff}

    def show(script: Path, result: Row) -> None:
        print(result["diff"])
        sites, untouched = counted(len(result["sites"]), "site"), f"{result['untouched']:.1%} of the lines untouched"
        print(f"{result['written']}: {sites}, {untouched}", file=sys.stderr)
        for choice in result["chosen"]:
            print(f"  chosen: {choice['name']} = {choice['value']} ({choice['reason']})", file=sys.stderr)
        for used in result["samples"]:
            print(f"  line {used['line']}: {used['value']!r} becomes the sample {used['sample']}", file=sys.stderr)
        for gap in result["unresolved"]:
            print(f"  line {gap['line']}: {gap['text']}: not resolved: {gap['reason']}", file=sys.stderr)

    for_each("Inspecting", files, one, show, as_json)


@app.command()
def explain(
    scripts: Scripts,
    manifest: ManifestFile = None,
    scenario: ScenarioFile = None,
    repo: Root = None,
    no_samples: NoSamples = False,
    ask: Ask = False,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    stages: Annotated[Path | None, typer.Option(metavar="PAGE", help="Write the stages as one HTML page here.")] = None,
    as_json: Json = False,
) -> None:
    """Explain scripts in the stages of the Inspection traces."""
    from genwright.inspect.report.explain import explain as explain_text
    from genwright.inspect.report.explain import explain_data
    from genwright.inspect.report.stages import stages_page
    from genwright.inspect.rewrite.rewrite import rewrite as rewrite_script

    given = open_scenario(scenario)
    files = expand(scripts)
    if stages is not None and len(files) > 1:
        raise UserError(f"--stages writes the page of one script, not of {len(files)}.")

    @_uncollected()
    def one(script: Path) -> Row:
        repository, known = open_script(script, manifest, repo)
        made = rewrite_script(script, known, given, repository, samples=not no_samples, ask=ask)
        if stages is not None:
            write(stages, stages_page(made, known.project, lang))
        if as_json:
            return explain_data(made, known.project, made.scenario)
        if stages is not None:
            return {"text": f"{stages}\n"}
        return {"text": explain_text(made, known.project, made.scenario, lang)}

    for_each("Inspecting", files, one, lambda _, result: print(result["text"], end=""), as_json)


def _relative(script: Path, files: list[Path]) -> Path:
    """A script's path below the output folder: its name, or more if two have the same; `.py` for notebooks."""
    same = [f for f in files if f.stem == script.stem]
    name = Path(script.name if len(same) == 1 else "_".join(script.resolve().parts[-3:]))
    if script.suffix != ".ipynb":
        return name
    return name.with_suffix(".py") if len(same) == 1 else Path(f"{name}.py")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would look through syntax trees again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


inspect_runs.add_to(app)
inspect_judgement.add_to(app)
