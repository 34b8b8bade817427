"""Scripts that run isolated, and what they leave."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from genwright.inspect.isolation.isolation import Ended, run_isolated
from genwright.inspect.isolation.sandbox_watch import Watch

Run = Callable[..., Ended]
REASON = "the test refuses them"


def isolated(*arguments: Any, **options: Any) -> Ended:
    """`run_isolated`, or the end of the test where the system itself refuses namespaces."""
    ended = run_isolated(*arguments, **options)
    if "refuses namespaces" in ended.message and REASON not in ended.message:
        pytest.skip(ended.message)
    return ended


def left_running(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark in process.cmdline() and process.pid != os.getpid():
                found.append(process.pid)
    return found


def printed(tmp_path: Path, name: str = "output.txt") -> str:
    return (tmp_path / "records" / "run-0001" / name).read_text()


def refuse_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Watch) -> None:
        self.refused = REASON

    real = Watch.run
    monkeypatch.setattr(Watch, "run", lambda self: (refused if self._plan["namespaces"] else real)(self))
