"""Draft a manifest: a repository's functions and methods ranked by how much they look like the border to its model."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.definitions import Definition, define
from genwright.inspect.analysis.locate import locate, parse
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import statements, walk

# fmt: off
_VERBS = frozenset({
    "generate", "sample", "infer", "inference", "predict", "transcribe", "synthesize", "synthesise", "translate",
    "detect", "recognize", "chat", "complete", "completion", "embed", "search", "query", "segment", "enhance",
    "restore", "swap", "upscale", "inpaint", "caption", "classify", "denoise", "tts", "asr",
})
_CHORES = frozenset({
    "parse", "load", "save", "get", "set", "print", "build", "create", "add", "convert", "init", "setup", "make",
    "read", "write", "download", "log", "register", "update", "configure", "is", "has", "check", "test", "close",
    "format", "default", "defaults", "str2bool", "args", "argparser", "sync", "backward", "train",
})
_INPUTS = frozenset({
    "model", "prompt", "prompts", "text", "texts", "image", "images", "img", "audio", "wav", "video", "query",
    "inputs", "input", "tokens", "x",
})
# fmt: on
_ASIDE = frozenset({"test", "tests", "testing", "benchmark", "benchmarks", "docs", "setup", "conftest", "third_party"})
_SHOWN = 30
_BY_NAME, _BY_GRADIENT = "its name says so", "it runs without gradients"


@dataclass(frozen=True)
class Candidate:
    """One candidate with its score and the reasons for it."""

    definition: Definition
    score: float
    reasons: tuple[str, ...]
    owner: Definition | None = None  # a method's class


@dataclass(frozen=True)
class _File:
    """What the ranking keeps of a file; its syntax tree is let go."""

    path: Path
    definitions: list[Definition]
    called: set[str]
    returning: set[str]
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
            read.append(_File(path, definitions, _called(tree), _returning(tree), _is_entry(tree)))
    if not read:
        raise UserError(f"{repository.root} has no Python file that can be read.")
    called = {name for file in read for name in file.called}
    calling = Counter(name for file in read if file.is_entry for name in file.called)
    found: list[Candidate] = []
    for file in read:
        classes = {d.name: d for d in file.definitions if d.kind == "class"}
        for definition in file.definitions:
            if definition.kind == "class" or (definition.kind == "method" and definition.owner not in called):
                continue
            last = definition.name.rpartition(".")[2]
            own = file.is_entry and last in file.called
            abroad = calling[last] > own
            at_home = file.is_entry and definition.name in file.called
            candidate = _score(definition, file.path, abroad, at_home, definition.name in file.returning)
            found.append(replace(candidate, owner=classes.get(definition.owner)))
    return sorted(found, key=lambda c: (-c.score, c.definition.module, c.definition.line, c.definition.name))


def draft(repository: Repository, project: str, candidates: list[Candidate]) -> Manifest:
    """A manifest of the best candidates, with the classes of its methods."""
    best = candidates[0].score if candidates else 0
    likely = [c for c in candidates if set(c.reasons) & {_BY_NAME, _BY_GRADIENT}]
    chosen = [c for c in likely if c.score >= max(4.0, best * 0.6)][:_SHOWN]
    if not chosen:
        raise UserError(f"Nothing in {repository.root} looks like the interface of a model; write a manifest by hand.")
    owners = {(c.owner.module, c.owner.name): c.owner for c in chosen if c.owner is not None}
    return Manifest(project, tuple(_interface(d) for d in [*owners.values(), *(c.definition for c in chosen)]))


def draft_for_script(repository: Repository, script: Path, source: str) -> Manifest:
    """A manifest for one script: the best candidates among what it defines and imports from its repository."""
    tree = parse(source, script.name)
    files = _reachable(repository, script, tree)
    manifest = draft(repository, project_name(repository), rank(repository, files))
    location = locate(tree, manifest, repository.module(script), repository.package(script))
    behind = _behind(location)
    scopes = location.flow.scopes
    outer = {s.interface.name for s in location.sites if not any(scopes.inside(s.call, body) for body in behind)}
    crossed = {i.owner for i in manifest.interfaces if i.name in outer and i.kind == "method"}
    kept = [i for i in manifest.interfaces if i.name in (crossed if i.kind == "class" else outer)]
    return Manifest(manifest.project, tuple(kept) or manifest.interfaces)


def _behind(location: Location) -> list[ast.AST]:
    """The script's functions on the model's side of the border: interfaces, and all that they call in turn."""
    used = {s.interface.name for s in location.sites}
    behind: list[ast.AST] = [node for interface, node in location.defined if interface.name in used]
    for body in behind:  # grows while it is walked
        for node in ast.walk(body):
            if isinstance(node, ast.Call) and node in location.flow.scopes.of_node:
                behind += [n for n in location.flow.definitions(node.func) if n not in behind]
    return behind


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


def project_name(repository: Repository) -> str:
    return re.sub(r"[^\w.\- ]", "_", repository.root.name) or "project"


def _score(definition: Definition, file: Path, abroad: bool, at_home: bool, returns: bool) -> Candidate:
    words = set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", definition.name.rpartition(".")[2]).lower()))
    signature = definition.signature or Signature(())
    parameters = {p.name.lower() for p in signature.parameters}
    decorators = " ".join(definition.decorators)
    judged = [
        (4.0, _BY_NAME, bool(words & _VERBS) or definition.name.endswith(".__call__")),
        (3.0, _BY_GRADIENT, "no_grad" in decorators or "inference_mode" in decorators),
        (5.0, "an entry script calls it", abroad),
        (2.0, "its own file's entry calls it", at_home),
        (1.0, "it takes what models take", bool(parameters & _INPUTS)),
        (1.0, "it returns something", returns),
        (0.5, "it is documented", bool(definition.summary)),
        (-3.0, "its name is a chore's", bool(words & _CHORES) or definition.name in ("main", "cli", "run")),
        (-4.0, "it stands aside", bool({p.lower() for p in [*file.parts[-4:-1], file.stem]} & _ASIDE)),
    ]
    reasons = tuple(reason for points, reason, holds in judged if holds)
    return Candidate(definition, sum(points for points, _, holds in judged if holds), reasons)


def _called(tree: ast.Module) -> set[str]:
    """The last names of everything that a file calls."""
    names = set()
    for node in walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            names.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                names.add(function.value.id)  # a class whose factory is called
    return names - {""}


def _is_entry(tree: ast.Module) -> bool:
    """Whether a file is run: it has a main guard, or its top level calls things."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return True
        if isinstance(statement, ast.Expr | ast.Assign | ast.For | ast.While | ast.With) and any(
            isinstance(n, ast.Call) for n in walk(statement)
        ):
            return True
    return False


def _returning(tree: ast.Module) -> set[str]:
    found = set()
    for outer in tree.body:
        inner = [(f"{outer.name}.", n) for n in outer.body] if isinstance(outer, ast.ClassDef) else [("", outer)]
        for prefix, node in inner:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any(_gives(statement) for statement in statements(node.body)):
                found.add(prefix + ("__call__" if node.name == "forward" and prefix else node.name))
    return found


def _gives(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return (value is not None and isinstance(statement, ast.Return)) or isinstance(value, ast.Yield | ast.YieldFrom)


def _reachable(repository: Repository, script: Path, tree: ast.Module) -> list[Path]:
    """The script, and the files of the repository that it imports by name."""
    package = repository.package(script)
    files = [script.resolve()]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) - max(node.level - 1, 0)]
            base = ".".join([*parts, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{a.name}" for a in node.names)]
        for name in names:
            file = repository.find(name, script) if name else None
            if file is not None:
                files += [file, *_re_exported(repository, file)]
    return list(dict.fromkeys(files))


def _re_exported(repository: Repository, file: Path) -> list[Path]:
    """What a package's `__init__` takes from its own modules."""
    tree = repository.parse(file) if file.name == "__init__.py" else None
    found = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = file.parent.joinpath(*node.module.split(".")) if node.level == 1 else None
            path = inner.with_suffix(".py") if inner else repository.find(node.module)
            if path and path.is_file():
                found.append(path)
    return found


def _interface(definition: Definition) -> Interface:
    signature = definition.signature
    files = [p.name for p in signature.parameters if p.is_file] if signature else []
    return Interface(
        definition.name,
        definition.module,
        definition.kind,
        signature,
        tuple(files),
        (signature.returns if signature else None) or "",
        definition.summary,
        definition.factories,
    )
