"""A value for an option or parameter that nobody gave: from its choices, type and name, and from shipped files."""

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.bind import is_file_name
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.media.samples import FOLDERS, SAMPLES, sample_folder

_WORDS = {
    "image": "image images img imgs photo picture mask cloth garment face portrait jpg png jpeg",
    "audio": "audio audios wav wavs voice speech sound song mp3",
    "video": "video videos clip movie mp4 driving",
    "pdf": "pdf pdfs document documents",
}
_OUTPUT = {"out", "output", "outputs", "save", "saved", "target", "result", "results", "outdir", "outfile", "export"}
_FOLDER = {"dir", "folder", "directory", "outdir", "dirname"}
# Of files that a repository ships: formats that every reader of the medium opens.
_SUFFIXES = {
    "image": (".jpg", ".jpeg", ".png"),
    "audio": (".wav", ".mp3", ".flac"),
    "video": (".mp4", ".avi", ".mov"),
    "pdf": (".pdf",),
    "config": (".yaml", ".yml", ".json", ".toml"),
    "weights": (".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".pkl"),
}
_WEIGHTS = {"checkpoint", "ckpt", "weights", "weight", "model", "network", "pretrained"}
_KNOWN = {
    "device": "cpu",
    "language": "en",
    "languages": "en",
    "lang": "en",
    "seed": "0",
    "seeds": "0",
    "url": "http://localhost",
    "username": "user",
    "password": "password",
}
_TEXTS = {"text", "prompt", "query", "question", "message", "msg", "sentence", "caption", "content", "description"}
_SOURCES = {"input", "source", "src", "file", "infile", "filename", "inputs"}
_COUNTS = {
    *("steps", "step", "duration", "temperature", "topk", "topp", "k", "p", "n", "num", "count", "size", "width"),
    *("height", "scale", "batch", "coef", "alpha", "strength", "fps", "threshold", "weight", "length", "guidance"),
}
_NUMBERS = {"int": 1, "float": 1.0, "complex": 1.0}
_MOST_ENTRIES = 20_000  # of a repository that are looked at
TEXT = "A small cat sits on the table."


@dataclass(frozen=True)
class Choice:
    """A value that was chosen because nobody gave it: of what, as text, and why."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.reason})"


@dataclass(frozen=True)
class Wanted:
    """What is known of a value that is asked for; `about` is the medium that its script is about."""

    name: str
    kind: str = ""
    help: str = ""
    choices: tuple[Any, ...] = ()
    medium: str = ""
    about: str = ""


def medium_of(text: str) -> str:
    """The medium that a script's words name most."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    counts = {medium: sum(w in known.split() for w in words) for medium, known in _WORDS.items()}
    medium = max(counts, key=lambda m: counts[m])
    return medium if counts[medium] else ""


def choose(wanted: Wanted, root: Path) -> tuple[Any, str]:
    """A value, and the reason for it."""
    known = [c for c in wanted.choices if not isinstance(c, Unknown) and c is not None]
    if known:
        return known[0], "the first of its choices"
    kind = wanted.kind.rpartition(".")[2].lower()
    for name, number in _NUMBERS.items():
        if kind in (name, f"optional[{name}]", f"{name}range()") or kind.startswith(f"{name} "):
            return number, "a number, by its type"
    if kind == "bool":
        return False, "off, by its type"
    words = _split(wanted.name)
    if not wanted.medium and words & _COUNTS and kind in ("", "str"):
        return 1, "a number, by its name"
    medium = wanted.medium or _medium(words)
    if is_output(wanted.name) and not wanted.medium:
        medium = medium or ("" if words & _FOLDER else _medium(_split(wanted.help)))
        suffix = SAMPLES[medium][1][0] if medium and not words & _FOLDER else ""
        return f"output{suffix}", "a new path, by its name"
    for word in sorted(words & set(_KNOWN)):
        return _KNOWN[word], "by its name"
    path_like = is_file_name(wanted.name) or "path" in kind or "file" in kind
    if not medium and (path_like or not words & _TEXTS or "path" in _split(wanted.help)):
        medium = _medium(_split(wanted.help)) if not words & (_WEIGHTS | {"config"}) else ""
        medium = medium or (wanted.about if words & _SOURCES else "")
    if medium:
        return _media(medium, bool(words & _FOLDER), root)
    return _text_or_file(wanted.name, words, path_like, root)


def is_output(name: str) -> bool:
    """Whether a value is, by its name, a file or folder to write."""
    return bool(_split(name) & _OUTPUT)


def _text_or_file(name: str, words: set[str], path_like: bool, root: Path) -> tuple[str, str]:
    for kind, named in (("config", {"config", "cfg", "yaml"}), ("weights", _WEIGHTS)):
        if words & named:
            found = shipped(root, kind)
            return (found, "shipped with the repository") if found else (name, "a text: nothing tells which file")
    if words & _FOLDER:
        return str(root), "the repository's folder"
    if path_like:
        return name, "a text: nothing tells which file"
    return TEXT, "a sentence, by its name" if words & _TEXTS else "a sentence: nothing tells more"


def _media(medium: str, folder: bool, root: Path) -> tuple[str, str]:
    found = shipped(root, medium)
    if found:
        return (str(Path(found).parent) if folder else found), "shipped with the repository"
    stem, suffixes = SAMPLES[medium]
    name = FOLDERS[medium] if folder else stem + suffixes[0]
    return str(sample_folder() / name), f"a sample ({medium})"


def _medium(words: set[str]) -> str:
    return next((medium for medium, known in _WORDS.items() if words & set(known.split())), "")


def _split(text: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", text.lower()))


@lru_cache(maxsize=64)
def shipped(root: Path, kind: str) -> str:
    """The first file of a kind in a repository, those in folders of examples and configurations before others."""
    found: list[tuple[bool, int, str]] = []
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        seen += len(names)
        if seen > _MOST_ENTRIES:
            break
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix.lower() in _SUFFIXES[kind] and not name.startswith(".") and path.is_file():
                place = str(path.relative_to(root)).lower()
                wanted = "config" if kind == "config" else "example|sample|demo|asset|test|data|input|weight|checkpoint"
                found.append((not re.search(wanted, place), len(path.parts), str(path)))
    # A configuration elsewhere may be of anything.
    chosen = min((f for f in found if kind != "config" or not f[0]), default=None)
    return chosen[2] if chosen else ""
