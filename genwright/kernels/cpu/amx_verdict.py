"""Whether a kernel multiplies by AMX: only if a trial in a child process, made once, finds it right and faster."""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from genwright.home import keep, kernel_file, lock
from genwright.kernels.cpu.amx import cpu_model, has_amx_int8

TRIAL = (sys.executable, "-m", "genwright.kernels.cpu.amx_trial")
SECONDS = 60  # for the whole child: starting Python takes most of its time


@cache
def amx_is_faster(library: str, *kind: str | int) -> bool:
    """The verdict on a library of `tile_linear.kernel(*kind)`: tried at first, then read from the cache folder.

    False if no verdict can be kept there.
    """
    if not has_amx_int8():
        return False
    facts = cpu_model(), Path(library).name  # which has the digest of the kernel's source
    path = kernel_file(f"amx-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json")
    try:
        with lock(kernel_file("amx.lock")):  # one trial at a time, so that they do not slow each other down
            verdict = _read(path)
            if verdict is None:
                found = trial(library, *kind)
                keep(path, json.dumps({"processor": cpu_model(), "kind": kind, **found}, indent=1).encode())
                verdict = bool(found["faster"])
    except OSError:
        return _read(path) or False
    return verdict


def trial(library: str, *kind: str | int) -> dict[str, Any]:
    """Whether AMX is right and faster, and what the child reported or why it failed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*TRIAL, library, json.dumps(kind)]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=SECONDS
        )
        found = json.loads(done.stdout)
        return {"faster": found["equal"] and found["amx"] < found["vnni"], **found}
    except (subprocess.SubprocessError, ValueError) as error:
        return {"faster": False, "why": str(error)}


def _read(path: Path) -> bool | None:
    """The verdict that was kept; None if there is none."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["faster"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
