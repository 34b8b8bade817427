"""Files that appear in the run's folder and in the working folder while a call is on."""

import os
import time
from pathlib import Path

# What the run itself writes.
OWN = frozenset(
    {"calls", "values", "processes", "windows", "calls.count", "limited.count", "index.sqlite", "run.json", "run.lock"}
    | {"plan.json", "script.py", "original.py", "original.ipynb", "output.txt", "error.txt", "refused.txt"}
    | {"work", "written"}
)
_TICK = 50_000_000  # ns within which a second change of a folder may leave its time stamp as it is

Listing = dict[Path, frozenset[str]]


class NewFiles:
    """Lists folders, and again only after they have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, frozenset[str]]] = {}

    def listing(self) -> Listing:
        """What lies in the run's folder and in the current one."""
        try:
            here = Path.cwd()
        except OSError:  # the script removed it
            here = self._folder
        return {folder: self._list(folder) for folder in dict.fromkeys((self._folder, here))}

    def since(self, before: Listing) -> list[Path]:
        """What has been added, in the order of names."""
        return [
            folder / name
            for folder, there in before.items()
            for name in sorted(self._list(folder) - there - OWN)
            if not name.endswith(".partial")
        ]

    def _list(self, folder: Path) -> frozenset[str]:
        try:
            changed = folder.stat().st_mtime_ns
            stamp, names = self._seen.get(folder, (-1, frozenset()))
            if changed != stamp or time.time_ns() - changed < _TICK:
                names = frozenset(os.listdir(folder))
                self._seen[folder] = (changed, names)
        except OSError:
            return frozenset()
        return names
