"""The files that a run wrote: in its working directory, and elsewhere."""

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from genwright.inspect.isolation.overlay import outside
from genwright.inspect.records.records import file_sha256

SCANNED = 100_000  # files of the project that are compared before and after, where no layer catches what is written

Stamps = dict[Path, tuple[int, int]]


def written_files(folder: Path) -> list[dict[str, Any]]:
    """What is in `work/` and `outside/`: its path in the run's folder, or outside the one that the script used.

    `kept` is where the record keeps it.
    """
    found = []
    for top, is_outside in (("work", False), ("outside", True)):
        for parent, _, names in os.walk(folder / top):
            for path in sorted(Path(parent, name) for name in names):
                kept = str(path.relative_to(folder))
                entry: dict[str, Any] = {"path": kept.removeprefix("outside"), "outside": is_outside}
                info = path.lstat()
                if stat.S_ISCHR(info.st_mode):  # an overlay's mark for a file that was deleted
                    path.unlink()
                    found.append(entry | {"kept": None, "size": 0, "sha256": None, "deleted": True})
                elif stat.S_ISREG(info.st_mode):
                    found.append(entry | {"kept": kept, "size": info.st_size, "sha256": file_sha256(path)})
    return found


def stamps(folders: Iterable[Path], skipped: Path) -> Stamps:
    """Size and time of change of the files in these folders, the run's own folder excepted."""
    found: Stamps = {}
    for folder in folders:
        for parent, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if Path(parent, name) != skipped]
            for name in names:
                with suppress(OSError):
                    info = os.lstat(os.path.join(parent, name))
                    found[Path(parent, name)] = info.st_size, info.st_mtime_ns
            if len(found) > SCANNED:
                return found
    return found


def copy_changed(before: Stamps, after: Stamps, folder: Path) -> None:
    """Copy files that were written outside the run's folder into it."""
    for path, stamp in after.items():
        if before.get(path) != stamp and path.is_file():
            target = outside(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
