"""Draft a manifest: a repository's functions and methods ranked by how much they look like the border to its model."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.behaviour import Behaviour, behaviours, propagate
from genwright.inspect.analysis.definitions import Definition, define
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.syntax import called_name, is_main_guard, walk

_ASIDE = frozenset({"test", "tests", "testing", "benchmark", "benchmarks", "docs", "setup", "conftest", "third_party"})
_SHOWN = 30


@dataclass(frozen=True)
class Candidate:
    """One candidate with its score and the reasons for it; `likely` when code tells that it is one."""

    definition: Definition
    score: float
    reasons: tuple[str, ...]
    likely: bool
    owner: Definition | None = None  # a method's class


@dataclass(frozen=True)
class _File:
    """What the ranking keeps of a file; its syntax tree is let go."""

    path: Path
    definitions: list[Definition]
    called: set[str]
    behaviours: dict[str, Behaviour]
    is_entry: bool


def rank(
    repository: Repository,
    files: Iterable[Path] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Candidate]:
    """Every public function and method of the files (of all files by default), best first."""
    paths = list(files) if files is not None else repository.files
    read: list[_File] = []
    for done, path in enumerate(paths):
        progress(done, len(paths))
        tree = repository.parse(path)
        if tree is not None:
            definitions = define(tree, repository.module(path))
            read.append(_File(path, definitions, _called(tree), behaviours(tree), _is_entry(tree)))
    if not read:
        raise UserError(f"{repository.root} has no Python file that can be read.")
    propagate(file.behaviours for file in read)
    called = {name for file in read for name in file.called}
    calling = Counter(name for file in read if file.is_entry for name in file.called - _own(file))
    found: list[Candidate] = []
    for file in read:
        classes = {d.name: d for d in file.definitions if d.kind == "class"}
        makers = {name for d in classes.values() for name in d.factories}
        for definition in file.definitions:
            if definition.kind == "class" or (definition.kind == "method" and definition.owner not in called):
                continue
            last = definition.name.rpartition(".")[2]
            at_home = file.is_entry and last in file.called
            candidate = _score(definition, file, 0 if at_home else calling[last], at_home, last in makers)
            found.append(replace(candidate, owner=classes.get(definition.owner)))
    return sorted(found, key=lambda c: (-c.score, c.definition.module, c.definition.line, c.definition.name))


def draft(repository: Repository, project: str, candidates: list[Candidate]) -> Manifest:
    """A manifest of the best candidates, with the classes of its methods."""
    best = candidates[0].score if candidates else 0
    likely = [c for c in candidates if c.likely]
    chosen = [c for c in likely or candidates if c.score >= max(4.0, best * 0.6)][:_SHOWN]
    if not chosen:
        near = "; ".join(f"{c.definition.name} ({', '.join(c.reasons)})" for c in candidates[:3]) or "none"
        raise UserError(
            f"Nothing in {repository.root} looks like a model's interface; nearest: {near}; write a manifest by hand."
        )
    owners = {(c.owner.module, c.owner.name): c.owner for c in chosen if c.owner is not None}
    return Manifest(project, tuple(Interface.of(d) for d in [*owners.values(), *(c.definition for c in chosen)]))


def document(manifest: Manifest, candidates: list[Candidate]) -> str:
    """The interface document: what each interface takes and gives, and why it was proposed."""
    reasons = {c.definition.name: c for c in candidates}
    lines = [f"# Interfaces of {manifest.project}", ""]
    for interface in manifest.interfaces:
        lines += [f"## `{interface.name}`", ""]
        if interface.summary:
            lines += [interface.summary, ""]
        lines += [
            f"- {interface.kind} of module `{interface.module}`",
            f"- takes `{interface.signature or '(unknown)'}`",
        ]
        if interface.returns:
            lines.append(f"- returns `{interface.returns}`")
        if interface.files:
            lines.append(f"- arguments that are files: {', '.join(f'`{f}`' for f in interface.files)}")
        for name, signature in interface.factories.items():
            lines.append(f"- made by `{name}{signature or '(...)'}`")
        candidate = reasons.get(interface.name)
        if candidate:
            lines.append(f"- score {candidate.score:.1f}: {', '.join(candidate.reasons)}")
        lines.append("")
    return "\n".join(lines)


def _score(definition: Definition, file: _File, abroad: int, at_home: bool, makes: bool) -> Candidate:
    behaviour = file.behaviours.get(definition.name) or Behaviour()
    aside = {p.lower() for p in [*file.path.parts[-4:-1], file.path.stem]} & _ASIDE
    judged = [
        *((points, reason, True) for points, reason in behaviour.judge()),
        (4.0 + 0.2 * min(abroad, 5), "an entry script calls it", abroad > 0),
        (1.0, "its own file's entry calls it", at_home),
        (1.0, "it returns something", behaviour.returns),
        (0.5, "it is documented", bool(definition.summary)),
        (-2.0, "it only makes the object", makes),
        (-4.0, "it belongs to tests, benchmarks or documentation", bool(aside)),
    ]
    reasons = tuple(reason for points, reason, holds in judged if holds)
    score = sum(points for points, _, holds in judged if holds)
    return Candidate(definition, score, reasons, behaviour.crosses or abroad > 0)


def _own(file: _File) -> set[str]:
    return {d.name.rpartition(".")[2] for d in file.definitions}


def _called(tree: ast.Module) -> set[str]:
    """The last names of everything that a file calls."""
    names = set()
    for node in walk(tree):
        if isinstance(node, ast.Call):
            names.add(called_name(node))
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                names.add(node.func.value.id)  # a class whose factory is called
    return names - {""}


def _is_entry(tree: ast.Module) -> bool:
    """Whether a file is run: it has a main guard, or its top level calls things."""
    for statement in tree.body:
        if is_main_guard(statement):
            return True
        if isinstance(statement, ast.Expr | ast.Assign | ast.For | ast.While | ast.With) and any(
            isinstance(n, ast.Call) for n in walk(statement)
        ):
            return True
    return False
