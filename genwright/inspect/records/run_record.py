"""The run's own record: what was started, when and where, and how it ended."""

import atexit
import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genwright.inspect.records.records import RecordFolder
from genwright.inspect.records.research_layout import write_research_layout
from genwright.inspect.records.secrets import redacted_arguments, redacted_environment
from genwright.inspect.records.stored_runs import StoredRun

# What of the environment a run depends on; the rest is the machine's own.
_RELEVANT = ("CUDA", "PYTHON", "OMP", "MKL", "TORCH", "HF_", "TRANSFORMERS", "GENWRIGHT", "TOKENIZERS", "NCCL", "LD_")


def now() -> str:
    """The time as run.json writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def begin_run(name: str, label: str, mode: str, script: str = "", argv: list[str] | None = None) -> dict[str, Any]:
    """The record of a run that starts now."""
    argv = sys.argv[1:] if argv is None else argv
    script = script or (os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "")
    return {
        "name": name,
        "label": label,
        "script": script,
        "argv": redacted_arguments(argv),
        "mode": mode,
        "command": redacted_arguments([sys.executable, *sys.argv]),
        "commit": commit_of(Path(script).parent) if script else None,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "environment": relevant_environment(os.environ),
        "seeds": {"found": [], "set": {}},
        "started": now(),
        "ended": None,
        "seconds": None,
        "status": "running",
        "exit_code": None,
        "limit": None,
        "unenforced": [],
        "interfaces": {},
        "answers": [],
        "set": {},
        "scenario": {},
        "files": [],
        "processes": [],
    }


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a run depends on, without secrets."""
    return redacted_environment({k: v for k, v in environment.items() if k.startswith(_RELEVANT)})


def commit_of(folder: Path) -> str | None:
    """The commit of the repository around a folder, with `+` if files differ from it; None if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        if head.returncode == 0:
            status = [*git, "status", "--porcelain", "--untracked-files=no"]
            changed = subprocess.run(status, capture_output=True, text=True, timeout=10)
            return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
    return None


def end_run_at_exit(folder: RecordFolder, run: dict[str, Any]) -> None:
    """Complete the record of a run that no other process watches, when this process exits."""
    maker, started = os.getpid(), time.monotonic()

    def end() -> None:
        if os.getpid() != maker or not folder.path.is_dir():
            return
        error = getattr(sys, "last_value", None)
        run["ended"], run["seconds"] = now(), round(time.monotonic() - started, 6)
        run["status"], run["exit_code"] = ("failed", 1) if error is not None else ("ended", 0)
        # A folder that was removed meanwhile needs no record.
        with contextlib.suppress(OSError):
            folder.write_run(run)
            write_research_layout(StoredRun(folder.path))

    atexit.register(end)
