"""How often `genwright inspect` finds the border to the model, script by script and by the whole command.

    python benchmarks/inspect_scripts.py dataset FOLDER        # a checkout of Inspection_release
    python benchmarks/inspect_scripts.py repositories FOLDER   # checkouts of inspect_repositories.toml, as OWNER+NAME
    python benchmarks/inspect_scripts.py samples FOLDER        # any checkouts

`dataset` builds for each project a repository of what the dataset holds, and compares the calls that are located
without a manifest with those of the project's own manifest; half `a` of the projects was used for tuning, half `b` was
not. `repositories` compares them with what a reader named. For both, each command is a process of its own, two at a
time, and results are kept in --state, so that a run that was ended goes on where it stopped. `samples` lists every text
literal in the Python files of the checkouts that would be replaced by a sample file.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import analyse
from genwright.inspect.analysis.border import draft_for_script
from genwright.inspect.analysis.manifest import Interface, Manifest, _parsed
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.resources import Resource, placeholders

REPOSITORIES = Path(__file__).with_name("inspect_repositories.toml")
SECONDS = 300  # for one command
Row = dict[str, Any]


def command(*words: str) -> Row:
    """Run `genwright inspect WORDS --json`: its exit status, the calls that it located, and what it said."""
    line = [sys.executable, "-m", "genwright", "inspect", *words, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    said = done.stderr.strip().splitlines()
    if done.returncode:
        return {"code": done.returncode, "said": said[-1] if said else "", "traceback": "Traceback" in done.stderr}
    result = json.loads(done.stdout)
    sites = [s for s in result["sites"] if s["kind"] != "construction"] or result["sites"]
    return {
        "code": 0,
        "calls": sorted({(s["line"], s["call"]) for s in sites}),
        "interfaces": sorted({s["interface"] for s in result["sites"]}),
        "samples": [(s["line"], s["value"]) for s in result.get("samples", [])],
    }


def calls(result: Row) -> set[tuple[int, str]]:
    return {(line, call) for line, call in result.get("calls", [])}


# The dataset.


def halves(info: Path) -> dict[str, str]:
    projects = sorted(path.stem for path in info.glob("*.json"))
    random.Random(22).shuffle(projects)
    return {project: "ab"[index % 2] for index, project in enumerate(projects)}


def place(item: Row, root: str, otherwise: str) -> str:
    path, start = item.get("Path", ""), root.rstrip("/") + "/"
    if path.lower().startswith(start.lower()):  # one project's paths differ in case
        path = path[len(start) :]
    return path if path.endswith(".py") and not path.startswith("/") else otherwise


def build(data: Row, folder: Path) -> list[Path]:
    """A project's implementations and scripts at their own paths; two excerpts of one file are joined."""
    texts: dict[str, str] = {}
    for number, item in enumerate(data["API_Implementations"]):
        path = item.get("Path", "").rpartition("/")[2]
        name = place(item, data["Project_Root"], path if path.endswith(".py") else f"implementation{number}.py")
        texts[name] = joined(texts.get(name, ""), ast.unparse(_parsed(str(item["Implementation"]))))
    scripts = []
    for number, item in enumerate(data["API_Calls"]):
        name = place(item, data["Project_Root"], f"script{number}.py")
        texts[name] = joined(texts.get(name, ""), item["Code"])
        scripts.append(folder / name)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".git").mkdir(exist_ok=True)  # as in a checkout, it marks the root
    return scripts


def joined(first: str, second: str) -> str:
    """Two excerpts of one file, without the definitions of the first that the second repeats, and without its calls."""
    again = {getattr(node, "name", "") for node in ast.parse(second).body}
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = [n for n in ast.parse(first).body if isinstance(n, kinds) and getattr(n, "name", None) not in again]
    return "\n".join([*map(ast.unparse, body), second])


def dataset_row(project: str, half: str, script: Path, info: Path, out: Path) -> Row:
    given = ("--manifest", str(info / f"{project}.json"))
    drafted, declared = command("locate", str(script)), command("locate", str(script), *given)
    return {
        "project": project,
        "group": f"half {half}",
        "found": bool(calls(drafted) & calls(declared)),
        "given": bool(calls(declared)),
        "written": command("rewrite", str(script), "--out", str(out / "drafted"))["code"] == 0,
        "written given": command("rewrite", str(script), "--out", str(out / "given"), *given)["code"] == 0,
        "drafted": drafted.get("interfaces") or drafted.get("said"),
        "manifest": declared.get("interfaces") or declared.get("said"),
        "traceback": drafted.get("traceback", False) or declared.get("traceback", False),
    }


def dataset(folder: Path, work: Path) -> dict[str, Callable[[], Row]]:
    info = folder / "DataSet" / "InterfaceInfo"
    jobs: dict[str, Callable[[], Row]] = {}
    for project, half in sorted(halves(info).items()):
        scripts = build(json.loads((info / f"{project}.json").read_text()), work / project)
        for number, script in enumerate(scripts):
            job = (project, half, script, info, work / "out" / project / str(number))
            jobs[f"{project} {number}"] = partial(dataset_row, *job)
    return jobs


# Repositories outside the dataset.


def repository_row(entry: Row, folder: Path, out: Path) -> Row:
    root = folder / entry["name"].replace("/", "+")
    script = str(root / entry["script"])
    located = command("locate", script, "--repo", str(root))
    written = command("rewrite", script, "--repo", str(root), "--out", str(out))
    return {
        "project": entry["name"],
        "group": f"list {entry['list']}",
        "script": entry["script"],
        "found": bool({call for _, call in calls(located)} & set(entry["calls"])),
        "written": written["code"] == 0,
        "calls": sorted({call for _, call in calls(located)}),
        "drafted": located.get("interfaces") or located.get("said"),
        "written said": written.get("said", ""),
        "samples": written.get("samples", []),
        "traceback": located.get("traceback", False) or written.get("traceback", False),
    }


def repositories(folder: Path, work: Path) -> dict[str, Callable[[], Row]]:
    entries = tomllib.loads(REPOSITORIES.read_text())["repository"]
    jobs: dict[str, Callable[[], Row]] = {}
    for entry in entries:
        job = (entry, folder, work / "out" / entry["name"].replace("/", "+"))
        jobs[entry["name"]] = partial(repository_row, *job)
    return jobs


# Placeholders.


def substituted(file: Path, repository: Repository) -> list[Resource]:
    """The literals that become samples, with the drafted interfaces, or with none where no call is a model's."""
    source = repository.source(file)
    try:
        manifest = draft_for_script(repository, file, source)
    except UserError:
        manifest = Manifest("none", (Interface("no_such_function", ""),))
    return analyse(source, file, manifest, repository).resources


def samples(folder: Path) -> None:
    files = literals = 0
    roots = sorted(path for path in folder.iterdir() if path.is_dir())
    for root in roots:
        repository = Repository(root)
        for file in repository.files:
            files += 1
            tree = repository.parse(file)
            found = len(placeholders(tree)) if tree else 0
            literals += found
            for used in substituted(file, repository) if found else ():
                place = f"{root.name} | {file.relative_to(repository.root)} | {used.node.lineno}"
                print(f"| {place} | `{used.value}` | {used.kind} | {used.opened_by} |", flush=True)
    print(f"{len(roots)} repositories, {files} files, {literals} literals that look like placeholders")


# All.


def measure(jobs: dict[str, Callable[[], Row]], state: Path) -> list[Row]:
    """The rows, those that `state` has from an earlier run and the others, two at a time."""
    done: dict[str, Row] = {}
    if state.exists():
        for line in state.read_text().splitlines():
            row = json.loads(line)
            done[row["key"]] = row

    def one(key: str) -> None:
        row = {"key": key, **jobs[key]()}
        done[key] = row
        with state.open("a") as file:
            file.write(json.dumps(row) + "\n")

    missing = [key for key in jobs if key not in done]
    with ThreadPoolExecutor(2) as pool:
        for count, _ in enumerate(pool.map(one, missing), 1):
            print(f"\r{count} of {len(missing)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [done[key] for key in jobs]


def show(rows: list[Row], columns: list[str]) -> None:
    """The rows as a table, and how many have each property, in each group and in all."""
    print(f"| {' | '.join(columns)} | drafted |\n| {' --- |' * (len(columns) + 1)}")
    for row in rows:
        cells = [str({True: "yes", False: "no"}.get(row[c], row[c])) for c in columns]
        drafted = row["drafted"]
        cells.append(drafted if isinstance(drafted, str) else ", ".join(f"`{name}`" for name in drafted))
        print(f"| {' | '.join(cells)} |")
    counted = [c for c in columns if isinstance(rows[0][c], bool)]
    for group in [*sorted({row["group"] for row in rows}), "all"]:
        chosen = [row for row in rows if group in ("all", row["group"])]
        figures = ", ".join(f"{column} {sum(row[column] for row in chosen)}" for column in counted)
        print(f"{group}: {len(chosen)} scripts, {figures}")
    print(f"{sum(row['traceback'] for row in rows)} tracebacks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["dataset", "repositories", "samples"], default="dataset")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS"))
    parser.add_argument("--state", type=Path, help="the file that results are kept in; by default a new one")
    arguments = parser.parse_args()
    if arguments.folder is None:
        print("Inspection of public scripts was not measured: name a folder with them.")
        return
    if arguments.what == "samples":
        samples(arguments.folder)
        return
    with tempfile.TemporaryDirectory() as work:
        jobs = {"dataset": dataset, "repositories": repositories}[arguments.what](arguments.folder, Path(work))
        rows = measure(jobs, arguments.state or Path(work) / "state.jsonl")
    columns = {
        "dataset": ["project", "group", "found", "given", "written", "written given"],
        "repositories": ["project", "group", "script", "found", "written"],
    }
    show(rows, columns[arguments.what])


if __name__ == "__main__":
    main()
