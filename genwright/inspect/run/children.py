"""The Python processes that a recorded script starts: each runs the script as the run's plan says.

`site_packages/sitecustomize.py` is on their PYTHONPATH, and calls `enter` before anything else runs.
"""

import os
import sys
from typing import Any

from genwright.inspect.records.plan_file import RUN, Plan, current_plan
from genwright.inspect.run.main_module import run_script
from genwright.inspect.surroundings.import_hooks import after_import


def enter() -> None:
    """In a new process: become the recorded script if it runs that, and prepare for processes that are spawned."""
    plan = current_plan()
    if plan is None:
        return
    script = sys.argv[0] if sys.argv else ""
    if script not in ("", "-c", "-m") and os.path.realpath(script) == os.path.realpath(plan.script):
        _, _, folder = os.environ[RUN].partition(" ")
        at = sys.orig_argv.index(script) if script in sys.orig_argv else 1
        module = ["-m", "genwright.inspect.run.child", folder, "--"]
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:at], *module, *sys.argv[1:]])
    if plan.mode != "rewrite":
        after_import({"multiprocessing.spawn": lambda module: _spawned(module, plan)})


def _spawned(module: Any, plan: Plan) -> None:
    """A spawned process, or the server that forks others, loads the script as `__mp_main__` from its file."""
    load = module._fixup_main_from_path

    def fixup(path: str) -> None:
        current = sys.modules["__main__"]
        if os.path.realpath(path) != os.path.realpath(plan.script):
            load(path)
        elif getattr(current, "__file__", None) != path:
            module.old_main_modules.append(current)
            run_script(plan, "__mp_main__")

    module._fixup_main_from_path = fixup
