"""Placeholder media paths of a script: found, typed, and mapped to samples."""

import ast
import re
from dataclasses import dataclass
from typing import Any

from genwright.inspect.samples import FOLDERS, IMAGE_SUFFIXES, SAMPLES
from genwright.inspect.scopes import Scopes

_SUFFIXES = {
    "image": "jpg jpeg png bmp gif webp tif tiff",
    "audio": "wav mp3 flac ogg m4a aac opus",
    "video": "mp4 avi mov mkv webm m4v",
}
_KIND_OF = {f".{suffix}": kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_WORDS = {
    "image": {"image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "face", "faces", "frames"},
    "audio": {"audio", "audios", "wav", "wavs", "sound", "sounds", "speech", "voice", "voices", "song", "music"},
    "video": {"video", "videos", "movie", "movies", "clip", "clips"},
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
    """One placeholder: the literal, what it stands for, and the sample (below RESOURCES_PATH) that replaces it."""

    node: ast.Constant
    variable: str
    value: str
    kind: str
    folder: bool
    sample: str

    def to_dict(self) -> dict[str, Any]:
        shape = "folder" if self.folder else "file"
        return {
            "line": self.node.lineno,
            "variable": self.variable,
            "value": self.value,
            "kind": self.kind,
            "is": shape,
            "sample": self.sample,
        }


def find_resources(tree: ast.Module, scopes: Scopes) -> list[Resource]:
    """The placeholders in order; a placeholder that is no image, audio or video is left to the reader."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node not in scopes.parent:
            continue
        value = node.value
        if len(value) > 300 or "\n" in value or not _PLACEHOLDER.search(value) or re.match(r"\w+://", value):
            continue
        if isinstance(scopes.parent[node], NO_EXPRESSIONS):
            continue
        variable = _variable(node, scopes)
        kind, folder = _classify(value, variable)
        if kind:
            found.append(Resource(node, variable, value, kind, folder, _sample(value, kind, folder)))
    return sorted(found, key=lambda r: (r.node.lineno, r.node.col_offset))


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
                if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                    pairs = zip(reversed(parent.args.args), reversed(parent.args.defaults), strict=False)
                    return next((a.arg for a, d in pairs if d is child), "")
                return ""
        child = parent
    return ""


def _classify(value: str, variable: str) -> tuple[str, bool]:
    last = re.split(r"[/\\]", value.rstrip("/\\"))[-1].lower()
    suffix = f".{last.rpartition('.')[2]}" if "." in last else ""
    if suffix:
        # A suffix decides; one that is no medium's (model.pth) is not ours to replace.
        return _KIND_OF.get(suffix, ""), False
    words = set(re.split(r"[^a-z]+", f"{last} {variable}".lower()))
    for kind, known in _WORDS.items():
        if words & known:
            plural = bool(_PLURALS.search(last.strip("<>{}[]"))) or bool(re.search(r"dir|folder", variable.lower()))
            return kind, plural or value.endswith("/")
    return "", False


def _sample(value: str, kind: str, folder: bool) -> str:
    if folder:
        return FOLDERS[kind]
    if kind != "image":
        return SAMPLES[kind]
    suffix = value.rpartition(".")[2].lower()
    suffix = "." + {"jpeg": "jpg", "tif": "tiff"}.get(suffix, suffix)
    return SAMPLES["image"] + (suffix if suffix in IMAGE_SUFFIXES else ".jpg")
