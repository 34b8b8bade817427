"""The files of a repository that a script's imports lead to, whatever the repository's layout."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.syntax import Function, imported_module, walk

_MOST = 200


def reachable(repository: Repository, script: Path, tree: ast.Module) -> list[Path]:
    """The script, the modules it imports, those that define what it takes from packages, and those of base classes."""
    own = script.resolve()
    files = list(dict.fromkeys([own, *_imported(repository, own, tree, _used(tree))]))
    direct = len(files)
    for index, file in enumerate(files):  # grows while it is walked
        inner = repository.parse(file) if index else None
        if inner is not None:
            # What factories give lives one import further; base classes may live many imports further.
            wanted = _bases(inner) | (_results(inner) if index < direct else set())
            files += [f for f in _imported(repository, file, inner, wanted) if f not in files]
        if len(files) > _MOST:
            break
    return files


def _imported(repository: Repository, file: Path, tree: ast.Module, wanted: set[str]) -> list[Path]:
    package = repository.package(file)
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _module(repository, file, alias.name, wanted)
        elif isinstance(node, ast.ImportFrom):
            base = imported_module(node, package)
            for alias in node.names:
                if alias.name == "*" or alias.name in wanted or (alias.asname or "") in wanted:
                    names = wanted if alias.name == "*" else {alias.name, *wanted}
                    inner = _module(repository, file, f"{base}.{alias.name}".lstrip("."), names)
                    found += inner or (_module(repository, file, base, names) if base else [])
    return list(dict.fromkeys(found))


def _module(repository: Repository, near: Path, module: str, wanted: set[str]) -> list[Path]:
    """A module's file; of a package, and of one that is found nowhere else, the files that define the names."""
    file = repository.find(module, near)
    if file is not None and file.name != "__init__.py":
        return [file]
    parts = module.split(".")
    if file is not None:
        below = [f for f in repository.files if f.is_relative_to(file.parent)]
    else:
        below = [f for f in repository.files if _holds(repository.module(f).split("."), parts)]
        # In a larger tree this repository may be a folder far below: `company.team.repo.demo.predictor`.
        beside = near.with_name(f"{parts[-1]}.py")
        if not below and parts[-2:-1] == [near.parent.name] and beside.is_file():
            return [beside]
    own = [file] if file is not None else []
    return [*own, *(f for f in below if f not in own and _defines(repository, f, wanted))][:_MOST]


def _holds(path: list[str], parts: list[str]) -> bool:
    return any(path[start : start + len(parts)] == parts for start in range(len(path) - len(parts) + 1))


def _defines(repository: Repository, file: Path, wanted: Iterable[str]) -> bool:
    try:
        text = repository.source(file)
    except UserError:
        return False
    return bool(set(re.findall(r"^(?:async def|def|class) +(\w+)", text, re.MULTILINE)) & set(wanted))


def _used(tree: ast.Module) -> set[str]:
    """The names and attributes that a script uses."""
    nodes = list(walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def _bases(tree: ast.Module) -> set[str]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {ast.unparse(base).rpartition(".")[2] for node in classes for base in node.bases}


def _results(tree: ast.Module) -> set[str]:
    """The names of what functions give back, by a constructor's name or an annotation."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            found |= {n.id for n in ast.walk(node.returns) if isinstance(n, ast.Name)} if node.returns else set()
            found |= {
                n.func.id
                for n in ast.walk(node)
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id[:1].isupper()
            }
    return found
