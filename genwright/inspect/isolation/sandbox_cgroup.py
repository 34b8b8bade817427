"""Control groups: the system's own limit of a run's memory and threads, where we may make such a group.

It acts at once, while the watcher only looks now and then; and it holds for the owner of the machine, whom RLIMIT_NPROC
does not bind.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


class ControlGroup:
    """Groups for one run, one per hierarchy in the first version of cgroups; none where they are refused."""

    def __init__(self, memory: int | None, threads: int | None) -> None:
        limits = {"memory.max": memory, "memory.limit_in_bytes": memory, "memory.swap.max": 0, "pids.max": threads}
        self._folders: list[Path] = []
        for parent in _parents() if memory or threads else ():
            with suppress(OSError):
                folder = Path(tempfile.mkdtemp(prefix="genwright-", dir=parent))
                self._folders.append(folder)
                for name, value in limits.items():
                    if value is not None and (folder / name).exists():
                        (folder / name).write_text(str(value))

    def add(self, process: int) -> None:
        """Put a process into the group, before it starts others."""
        for folder in self._folders:
            with suppress(OSError):
                (folder / "cgroup.procs").write_text(str(process))

    def is_out_of_memory(self) -> bool:
        """Whether the system has ended a process for its memory."""
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    counts = dict(line.split() for line in (folder / name).read_text().splitlines())
                    if int(counts.get("oom_kill", 0)):
                        return True
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()


def _parents() -> Iterator[Path]:
    """Where a group can be made: beside our own, or inside it in the first version, where both may have processes."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = GROUPS / controllers / path.lstrip("/")
            if controllers in ("memory", "pids"):
                yield own
            elif not controllers and (GROUPS / "cgroup.controllers").exists():
                yield own if own == GROUPS else own.parent
