"""The most memory that this process held during a call."""

import resource


class PeakMemory:
    """Resets the system's high-water mark where it can be reset; elsewhere the mark of the whole process is told."""

    def __init__(self) -> None:
        self._active = 0

    def start(self) -> None:
        # Another call that is on shares the mark, so it is not reset under it.
        if not self._active:
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
            except OSError:
                pass
        self._active += 1

    def stop(self) -> int:
        """The mark in bytes."""
        self._active -= 1
        try:
            with open("/proc/self/status", "rb") as file:
                status = file.read()
            return int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
        except (OSError, ValueError, IndexError):
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
