"""Where in the script a recorded call stands."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,)  # genwright/inspect
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if sysconfig.get_path(name)
)
Range = tuple[int, int]


class CallSites:
    """The script's file and its located sites, by which a frame of the stack is told to be the script's.

    `lines` are the sites of each interface, `definitions` the lines of what the script itself defines of a class or
    function, and `original` the line of the original for each line of a rewritten script's calls.
    """

    def __init__(
        self,
        script: str = "",
        lines: dict[str, list[Range]] | None = None,
        definitions: dict[str, list[Range]] | None = None,
        original: dict[int, int] | None = None,
        running: str = "",
    ) -> None:
        self._script, self._running = script, running or script
        self._lines, self._definitions, self._original = lines or {}, definitions or {}, original or {}

    def place(self, interface: str) -> tuple[str, int | None]:
        """File and line of the call: the nearest located site of the interface on the stack, or who called."""
        first: FrameType | None = None
        for frame in _frames(sys._getframe(1)):
            if frame.f_code.co_filename.startswith(_OURS):
                continue
            first = first or frame
            if not self._script:
                break
            if frame.f_code.co_filename == self._running:
                if _inside(frame.f_lineno, self._lines.get(interface, [])):
                    first = frame
                    break
                if first.f_code.co_filename != self._running:
                    first = frame
        if first is None:
            return "", None
        if first.f_code.co_filename == self._running and self._script:
            return self._script, self._original.get(first.f_lineno, first.f_lineno)
        return first.f_code.co_filename, first.f_lineno

    def crosses(self, owner: str, package: str) -> bool:
        """Whether a wrapped function was called from the script's side of the border.

        It was if the script's file called it, directly or through libraries, but not from inside the definition of the
        interface's own class or function. `package` is where the interface lies: its calls of itself do not cross.
        """
        for frame in _frames(sys._getframe(1)):
            file = frame.f_code.co_filename
            if file == self._running:
                return not _inside(frame.f_lineno, self._definitions.get(owner, []))
            if file.startswith(_OURS):
                continue
            if package and file.startswith(package):
                return False
            if not file.startswith((*_LIBRARIES, "<")):
                return False
        return True  # a thread or a pool calls what it was handed


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _inside(line: int, ranges: list[Range]) -> bool:
    return any(first <= line <= last for first, last in ranges)
