"""A run's view of the files: what is hidden, what is shown read-only, and where the things that it writes go.

Below the run's folder, `work/` is the working directory, and `outside/` has what was written anywhere else, under the
path that the script used.
"""

import os
import pwd
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from genwright.home import cache_folder

LINKS = 10_000  # of a larger folder the rest is linked folder by folder
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))


@dataclass(frozen=True)
class Mount:
    """One mount: `private` and `write` bind `source`, `read` too but read-only, `empty` is a folder in memory.

    `layer` is an overlay: `source` below, and what is written goes to `upper`; `scratch` is a folder overlayfs needs.
    """

    kind: str
    target: str
    source: str = ""
    upper: str = ""
    scratch: str = ""


def home_folders() -> list[Path]:
    """The user's home by HOME and by the list of users, where they exist."""
    found = [os.path.expanduser("~")]
    with suppress(KeyError):  # a container's user may not be listed
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    homes = (Path(path).resolve() for path in found if os.path.isabs(path) and os.path.isdir(path))
    return [path for path in dict.fromkeys(homes) if path != Path("/")]


def outside(folder: Path, path: Path) -> Path:
    """Where the record keeps what was written to an absolute path."""
    return folder / "outside" / path.relative_to("/")


def plan_mounts(
    folder: Path, script_folder: Path, project: Path, readable: Iterable[Path], network: bool
) -> list[Mount]:
    """The mounts of a run in their order; makes the folders that they need.

    What is written to the script's folder goes to `work/`, where the same layer is seen.
    """
    hidden = [path for path in (*home_folders(), *TEMPORARY) if path.is_dir()]
    mounts = [Mount("private", str(path), str(_made(outside(folder, path)))) for path in hidden]
    hidden.append(Path("/dev"))
    if not network:
        mounts.append(Mount("empty", "/run"))  # sockets of the system's services
        hidden.append(Path("/run"))
    uppers = {path: outside(folder, path) for path in (project, cache_folder().resolve()) if path.is_dir()}
    uppers[script_folder] = folder / "work"
    layers = [path for path in uppers if path != Path("/")]
    for number, path in enumerate(layers):
        upper, scratch = _made(uppers[path]), _made(folder / ".layers" / str(number))
        mounts.append(Mount("layer", str(path), str(path), str(upper), str(scratch)))
    shown = [*python_folders(), *_mounted_below(layers)]
    shown = [path for path in shown if not any(home.is_relative_to(path) for home in home_folders())]
    asked = [form for path in readable for form in (path.absolute(), path.resolve())]
    for path in dict.fromkeys((*shown, *asked)):
        covered = any(path.is_relative_to(layer) for layer in layers) and not os.path.ismount(path)
        if path.exists() and any(path.is_relative_to(each) for each in (*hidden, *layers)) and not covered:
            mounts.append(Mount("read", str(path), str(path)))
    mounts.append(Mount("write", str(folder.resolve()), str(folder.resolve())))
    kinds = ("private", "empty", "layer", "read", "write")
    mounts.sort(key=lambda each: (len(Path(each.target).parts), kinds.index(each.kind)))
    return mounts


def python_folders() -> Iterator[Path]:
    """What this interpreter and its packages are read from, with every link on the way to it."""
    package = str(Path(__file__).parents[3])
    for entry in (sys.prefix, sys.base_prefix, package, *sys.path):
        if entry and (entry == package or Path(entry) != Path.cwd()):
            yield from (Path(entry).absolute(), Path(entry).resolve())
    link = Path(sys.executable)
    while link.is_symlink():
        yield link.parent
        link = link.parent / os.readlink(link)
    yield link.parent.resolve()


def link_files(script_folder: Path, work: Path) -> None:
    """Fill the working directory with links to the script's files, where an overlay is refused.

    Folders are made, so that new files in them land in the record too.
    """
    left = LINKS
    folders = [script_folder]
    while folders:
        for entry in sorted(os.scandir(folders.pop(0)), key=lambda found: found.name):
            left -= 1
            target = work / Path(entry.path).relative_to(script_folder)
            if work.is_relative_to(entry.path) or os.path.lexists(target):
                continue
            if entry.is_dir(follow_symlinks=False) and left > 0 and entry.name != ".git":
                target.mkdir()
                folders.append(Path(entry.path))
            else:
                target.symlink_to(entry.path)


def remove_scaffold(folder: Path, mounts: Iterable[Mount], script_folder: Path) -> None:
    """Remove what the view needed and the script did not write: mount points, links and folders that are empty."""
    for scratch in (folder / ".layers").glob("*/work"):
        scratch.chmod(0o700)  # overlayfs takes all permissions away
    for each in mounts:
        point = outside(folder, Path(each.target))
        if point.is_file() and not point.stat().st_size:
            point.unlink()
    for top in ("work", "outside", ".layers"):
        for parent, folders, names in os.walk(folder / top, topdown=False):
            for path in (Path(parent, name) for name in (*folders, *names)):
                if path.is_symlink() and path.readlink().is_relative_to(script_folder):
                    path.unlink()
            if parent != str(folder / "work") and not os.listdir(parent):
                os.rmdir(parent)


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _mounted_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Other file systems inside these folders, which an overlay does not show."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        point = Path(mount_point(line))
        if any(point != folder and point.is_relative_to(folder) for folder in folders):
            yield point


def mount_point(line: str) -> str:
    """The path in a line of mountinfo, where spaces and the like are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])
