"""Placeholder paths that a script opens: found by following the literal to what opens it, and mapped to samples."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.abstract_values import Items, Text, Values
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.file_arguments import read_files
from genwright.inspect.analysis.outputs import written_path
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scopes import Scopes
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import Function, defaults, walk
from genwright.inspect.media.samples import FOLDERS, MEDIUM_OF, SAMPLES

_WORDS = {
    "image": {"image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "face", "faces", "frames"},
    "audio": {"audio", "audios", "wav", "wavs", "sound", "sounds", "speech", "voice", "voices", "song", "music"},
    "video": {"video", "videos", "movie", "movies", "clip", "clips"},
    "pdf": {"pdf", "pdfs"},
}
# Words that tell a reader to put a path of their own: path/to/x, /your/file, <image>, YOUR_IMAGE_HERE, xxx.jpg.
_PLACEHOLDER = re.compile(
    r"(^|[/\\])(path|paths|dir|folder)[/\\_-]to([/\\_-]|$)|(^|[/\\_. -])your([/\\_. -])"
    r"|[<{\[].*(path|file|image|audio|video).*[>}\]]"
    r"|(^|[/\\])(xxx+|placeholder|somewhere)|_here($|\.)",
    re.IGNORECASE,
)
_PLURALS = re.compile(r"(s|dir|directory|folder|list)$", re.IGNORECASE)


# Where a literal stands but another expression may not: docstrings, parts of f-strings, patterns.
NO_EXPRESSIONS = (ast.Expr, ast.JoinedStr, ast.MatchValue)


@dataclass(frozen=True)
class Resource:
    """One placeholder: the literal, what it stands for, what opens it, and the sample that replaces it."""

    node: ast.Constant
    variable: str
    value: str
    kind: str
    folder: bool
    sample: str
    reason: str
    opened_by: str

    def to_dict(self) -> dict[str, Any]:
        shape = "folder" if self.folder else "file"
        return {
            "line": self.node.lineno,
            "variable": self.variable,
            "value": self.value,
            "kind": self.kind,
            "is": shape,
            "sample": self.sample,
            "reason": self.reason,
            "opened_by": self.opened_by,
        }


def placeholders(tree: ast.Module) -> frozenset[ast.Constant]:
    """The text literals that tell a reader to put a path of their own."""
    return frozenset(n for n in walk(tree) if isinstance(n, ast.Constant) and _is_placeholder(n.value))


def _is_placeholder(value: object) -> bool:
    if not isinstance(value, str) or len(value) > 300 or not _PLACEHOLDER.search(value) or re.match(r"\w+://", value):
        return False
    # A sentence is no path; only a placeholder in brackets may have spaces.
    return not re.search(r"\s", re.sub(r"<[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]", "", value))


def find_resources(location: Location, repository: Repository, script: Path) -> list[Resource]:
    """The placeholders that are opened as image, audio, video or PDF and that no file answers, in order."""
    flow = location.flow
    calls = [n for n in flow.nodes if isinstance(n, ast.Call)] if flow.texts else []
    written = {n for call in calls if (path := written_path(call, flow)) is not None for n in _texts(flow.values(path))}
    found: dict[ast.Constant, Resource] = {}
    for values, reason, medium, call in read_files(location, repository) if flow.texts else ():
        for node in _texts(values) - written - set(found):
            resource = _resource(node, reason, medium, call, flow)
            if resource is not None and not _exists(resource.value, script, repository):
                found[node] = resource
    return sorted(found.values(), key=lambda r: (r.node.lineno, r.node.col_offset))


def _texts(values: Values) -> set[ast.Constant]:
    """The literals among an argument's values, or in a list of them."""
    held = [v for items in values if isinstance(items, Items) for v in items.values]
    return {v.node for v in [*values, *held] if isinstance(v, Text)}


def _resource(node: ast.Constant, reason: str, medium: str, call: ast.Call, flow: Flow) -> Resource | None:
    if node not in flow.scopes.parent or isinstance(flow.scopes.parent[node], NO_EXPRESSIONS):
        return None
    value = str(node.value)
    variable = _variable(node, flow.scopes)
    kind, folder = _classify(value, variable)
    suffix = _suffix(value)
    kind = kind or ("" if suffix else medium)
    if not kind or (reason == "extension" and not suffix):
        return None
    opened_by = f"{ast.unparse(call.func)} (line {call.lineno})"
    return Resource(node, variable, value, kind, folder, _sample(value, kind, folder), reason, opened_by)


def _exists(value: str, script: Path, repository: Repository) -> bool:
    try:
        return any((folder / value).exists() for folder in (script.resolve().parent, repository.root))
    except (OSError, ValueError):
        return False


def by_kind(resources: list[Resource]) -> dict[str, list[str]]:
    """The placeholders as the traces list them."""
    kinds = {"images": "image", "audios": "audio", "videos": "video"}
    return {plural: [r.variable or r.value for r in resources if r.kind == kind] for plural, kind in kinds.items()}


def _variable(node: ast.AST, scopes: Scopes) -> str:
    """The name that a literal is given: a variable, a keyword or parameter, or an option of the command line."""
    child: ast.AST = node
    while child in scopes.parent:
        parent = scopes.parent[child]
        match parent:
            case ast.Assign():
                return ast.unparse(parent.targets[0])
            case ast.AnnAssign():
                return ast.unparse(parent.target)
            case ast.keyword(arg=str(name)):
                call = scopes.parent.get(parent)
                flags = (
                    [a.value for a in call.args if isinstance(a, ast.Constant)] if isinstance(call, ast.Call) else []
                )
                named = [str(f).lstrip("-") for f in flags if str(f).startswith("-")]
                return named[-1] if name == "default" and named else str(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
                if isinstance(parent, Function):
                    return next((a.arg for a, d in defaults(parent.args) if d is child), "")
                return ""
        child = parent
    return ""


def _classify(value: str, variable: str) -> tuple[str, bool]:
    suffix = _suffix(value)
    last = _last(value)
    if suffix:
        # A suffix decides; one that is no medium's (model.pth) is not ours to replace.
        return MEDIUM_OF.get(suffix, ""), False
    words = set(re.split(r"[^a-z]+", f"{last} {variable}".lower()))
    for kind, known in _WORDS.items():
        if words & known:
            plural = bool(_PLURALS.search(last.strip("<>{}[]"))) or bool(re.search(r"dir|folder", variable.lower()))
            return kind, plural or value.endswith("/")
    return "", False


def _last(value: str) -> str:
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1].lower()


def _suffix(value: str) -> str:
    return f".{_last(value).rpartition('.')[2]}" if "." in _last(value) else ""


def _sample(value: str, kind: str, folder: bool) -> str:
    if folder:
        return FOLDERS[kind]
    stem, suffixes = SAMPLES[kind]
    suffix = {".jpeg": ".jpg", ".tif": ".tiff"}.get(_suffix(value), _suffix(value))
    return stem + (suffix if suffix in suffixes else suffixes[0])
