"""The most memory that this process held during a call."""

import os
import resource


class PeakMemory:
    """Resets the system's high-water mark where it can be reset; elsewhere the mark of the whole process is told."""

    def __init__(self) -> None:
        self._active = 0
        self._process, self._reset, self._status = -1, -1, -1

    def start(self) -> None:
        if self._process != os.getpid():
            self._open()
        # Another call that is on shares the mark, so it is not reset under it.
        if not self._active and self._reset >= 0:
            os.pwrite(self._reset, b"5", 0)
        self._active += 1

    def stop(self) -> int:
        """The mark in bytes."""
        self._active -= 1
        try:
            status = os.pread(self._status, 4096, 0)
            return int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
        except (OSError, ValueError, IndexError):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _open(self) -> None:
        """Open the files of this process anew: a forked one has its parent's."""
        self._process = os.getpid()
        self._reset, self._status = _opened("clear_refs", os.O_WRONLY), _opened("status", os.O_RDONLY)


def _opened(name: str, flags: int) -> int:
    try:
        return os.open(f"/proc/self/{name}", flags | os.O_CLOEXEC)
    except OSError:
        return -1
