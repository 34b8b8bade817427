"""What the processes of a run use: memory, processor time, their number; and an end to all of them."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    memory: int = 0  # bytes that the system cannot take back: not files that are mapped
    cpu_seconds: float = 0.0
    processes: int = 0


def namespace_usage(init: int, doubtful: float) -> Usage:
    """The usage of a process namespace, which its own /proc lists; `init` is its first process.

    Memory that processes share is counted once if the sum is above `doubtful`; else that would take time for nothing.
    """
    proc = Path(f"/proc/{init}/root/proc")
    memory, cpu, processes = 0, 0.0, namespace_processes(init)
    for name in processes:
        with suppress(OSError):  # it has ended
            cpu += sum(map(int, (proc / name / "stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS
            memory += _kilobytes(proc / name / "status", "RssAnon:", "RssShmem:")
    if memory * 1024 > doubtful and len(processes) > 2:
        memory = sum(_kilobytes(proc / name / "smaps_rollup", "Pss_Anon:", "Pss_Shmem:") for name in processes)
    return Usage(memory * 1024, cpu, len(processes) - 1)


def namespace_processes(init: int) -> list[str]:
    """The ids of all processes in a namespace, of which `init` is the first."""
    try:
        return [name for name in os.listdir(f"/proc/{init}/root/proc") if name.isdigit()]
    except OSError:
        return []


def tree_usage(root: int) -> Usage:
    """The usage of a process's descendants."""
    memory, cpu, processes = 0, 0.0, 0
    for process in _descendants(root):
        with suppress(psutil.Error), process.oneshot():
            used, times = process.memory_info(), process.cpu_times()
            memory += used.rss - getattr(used, "shared", 0)
            cpu += times.user + times.system + getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
            processes += 1
    return Usage(memory, cpu, processes)


def kill_tree(root: int) -> None:
    """End a process and its descendants: all are stopped first, so that none can start another meanwhile."""
    stopped: dict[int, psutil.Process] = {}
    while True:
        found = [process for process in _descendants(root) if process.pid not in stopped]
        if not found:
            break
        for process in found:
            stopped[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    for process in stopped.values():
        with suppress(psutil.Error):
            process.kill()
    with suppress(psutil.Error):
        psutil.Process(root).kill()
    while any(_is_alive(process) for process in stopped.values()):
        time.sleep(0.005)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def folder_bytes(folder: Path) -> int:
    """The bytes that a folder's files take on disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _descendants(root: int) -> list[psutil.Process]:
    try:
        return psutil.Process(root).children(recursive=True)
    except psutil.Error:
        return []


def _kilobytes(path: Path, *names: str) -> int:
    with suppress(OSError):
        lines = path.read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0
