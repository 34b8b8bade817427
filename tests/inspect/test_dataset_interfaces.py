"""How often the declared interface of the research dataset's scripts is found, with and without its manifest.

It runs when GENWRIGHT_PUBLIC_SCRIPTS names a folder with a checkout of Inspection_release, and prints one row per
script (`pytest -s`). Ranking was tuned on half `a` only; the halves are drawn by project, with a fixed seed.
"""

import ast
import json
import os
import random
from pathlib import Path

import pytest

from genwright.errors import UserError
from genwright.inspect.analysis.border import draft_for_script
from genwright.inspect.analysis.locate import locate
from genwright.inspect.analysis.manifest import Manifest, _parsed, load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.sites import Site

INFO = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent")) / "Inspection_release/DataSet/InterfaceInfo"
pytestmark = pytest.mark.skipif(not INFO.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS has no Inspection_release")


def halves() -> dict[str, str]:
    projects = sorted(path.stem for path in INFO.glob("*.json"))
    random.Random(22).shuffle(projects)
    return {project: "ab"[index % 2] for index, project in enumerate(projects)}


def place(item: dict, root: str, otherwise: str) -> str:
    path, start = item.get("Path", ""), root.rstrip("/") + "/"
    if path.lower().startswith(start.lower()):  # one project's paths differ in case
        path = path[len(start) :]
    return path if path.endswith(".py") and not path.startswith("/") else otherwise


def build(project: str, folder: Path) -> list[Path]:
    """The project's implementations and scripts at their own paths; two excerpts of one file are joined."""
    data = json.loads((INFO / f"{project}.json").read_text())
    root, texts = data["Project_Root"], {}
    for number, item in enumerate(data["API_Implementations"]):
        path = item.get("Path", "").rpartition("/")[2]
        name = place(item, root, path if path.endswith(".py") else f"implementation{number}.py")
        text = ast.unparse(_parsed(str(item["Implementation"])))
        texts[name] = _joined(texts.get(name, ""), text)
    scripts = []
    for number, item in enumerate(data["API_Calls"]):
        name = place(item, root, f"script{number}.py")
        texts[name] = _joined(texts.get(name, ""), item["Code"])
        scripts.append(folder / name)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return scripts


def _joined(first: str, second: str) -> str:
    """Two excerpts of one file, without the definitions of the first that the second repeats, and without its calls."""
    again = {getattr(node, "name", "") for node in ast.parse(second).body}
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = [n for n in ast.parse(first).body if isinstance(n, kinds) and getattr(n, "name", None) not in again]
    return "\n".join([*map(ast.unparse, body), second])


def sites(script: Path, repository: Repository, manifest: Manifest) -> list[Site]:
    tree = ast.parse(repository.source(script))
    return locate(tree, manifest, repository.module(script), repository.package(script)).sites


def crossings(found: list[Site]) -> set[str]:
    """The calls, without constructions where there is anything else."""
    calls = {ast.unparse(s.call) for s in found if s.kind != "construction"}
    return calls or {ast.unparse(s.call) for s in found}


def row(project: str, script: Path, folder: Path) -> tuple[bool, bool, str]:
    """Whether the interface is found without and with the manifest, and what was found without."""
    repository, given = Repository(folder), load_manifest(INFO / f"{project}.json")
    declared = crossings(sites(script, repository, given))
    try:
        drafted = sites(script, repository, draft_for_script(repository, script, repository.source(script)))
    except UserError as error:
        return False, bool(declared), str(error).replace(str(folder), "")
    names = ", ".join(sorted({s.interface.name for s in drafted})) or "no site"
    return bool(declared & crossings(drafted)), bool(declared), names


def test_declared_interfaces_are_found(tmp_path: Path) -> None:
    counts: dict[str, list[int]] = {"a": [0, 0, 0], "b": [0, 0, 0]}
    for project, half in sorted(halves().items()):
        for script in build(project, tmp_path / project):
            found, declared, names = row(project, script, tmp_path / project)
            counts[half] = [n + x for n, x in zip(counts[half], (1, found, declared), strict=True)]
            print(f"| {project} | {half} | {'yes' if found else 'no'} | {'yes' if declared else 'no'} | {names} |")
    print(counts)
    scripts, without, given = (sum(c[n] for c in counts.values()) for n in range(3))
    assert scripts == 105 and without >= 90 and given >= 100
