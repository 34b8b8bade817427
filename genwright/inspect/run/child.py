"""The process of a run: `python -m genwright.inspect.run.child FOLDER` runs a script as its plan says."""

import os
import sys
import traceback
from pathlib import Path

from genwright.inspect.records.plan_file import REFUSED, RUN, Plan, read_plan
from genwright.inspect.replay.model_stand_in import line_of_training
from genwright.inspect.run.main_module import run_script


def main(folder: str, *argv: str) -> None:
    """Run the script; a process that the script starts has arguments of its own, behind `--`."""
    plan = read_plan(Path(folder))
    if plan is None:
        sys.exit(f"genwright: {folder} has no plan of a run.")
    os.environ[RUN] = f"0 {folder}"
    sys.argv[:] = [plan.script, *(argv[1:] if argv else plan.argv)]
    # `-m` put the current folder in front.
    sys.path[: 1 if sys.path[0] in ("", os.getcwd()) else 0] = plan.path
    try:
        run_script(plan, "__main__")
    except SystemExit:
        raise
    except BaseException as error:  # shown as Python would show it, without our own frames
        _refuse_training(error, plan, Path(folder))
        trace = error.__traceback__
        for _ in range(2):
            trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        # Python's own hook reads the file anew, and a notebook's lines are not those of its file.
        show = traceback.print_exception if sys.excepthook is sys.__excepthook__ else sys.excepthook
        show(type(error), error.with_traceback(trace), trace)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _refuse_training(error: BaseException, plan: Plan, folder: Path) -> None:
    """End a run without its model, and leave the reason in its folder, where the script trains the model."""
    line = line_of_training(error, plan) if plan.mode in ("replay", "mock") else None
    if line is not None:
        reason = f"Line {line} trains the model or uses its parameters, so the script needs the model itself."
        (folder / REFUSED).write_text(reason)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
