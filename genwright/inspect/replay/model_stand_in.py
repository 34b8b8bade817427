"""What stands in the model's place in a replayed or mocked run, as its plan says."""

import re
import traceback
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.manifest import Manifest, parse_manifest
from genwright.inspect.records.plan_file import Plan
from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.replay.mock import Mock
from genwright.inspect.replay.replay import Replay
from genwright.inspect.replay.stand_in_modules import class_of, stand_in_for

_TRAINING = ("torch.optim", "torch.autograd")
_NO_WEIGHTS = re.compile(r"\bStandIn\b|does not require grad")


def model_stand_in(plan: Plan) -> Replay | Mock:
    """Recorded or made-up results; from here on the model's modules can be imported even if they are not there."""
    known = bool(plan.manifest.get("interface"))
    manifest = parse_manifest(plan.manifest, "the plan") if known else Manifest(plan.project, ())
    factories = {
        f"{i.name}.{name.rpartition('.')[2]}": s for i in manifest.interfaces for name, s in i.factories.items()
    }
    signatures = {i.name: i.signature for i in manifest.interfaces} | factories
    signatures |= {name.partition(".")[2]: signature for name, signature in factories.items()}
    homes = [(t.name, home) for t in plan.interfaces for home in t.homes]
    for target in plan.interfaces:
        for factory, home in target.factories.items():
            # Whether it is a method of the class or a function beside it only the model tells.
            homes += [(factory, home), (f"{target.name}.{factory}", home)]
    on_class = {i.name for i in manifest.interfaces if i.on_class} | set(factories)
    stand_in_for(homes, {n: s.python for n, s in signatures.items() if s}, on_class)

    def find_class(name: str) -> Any:
        return class_of(homes, name)

    run = StoredRun(Path(plan.answered_by)) if plan.answered_by else None
    if plan.mode == "replay" and run is not None:
        return Replay(run, find_class)
    return Mock(manifest, run, find_class)


def line_of_training(error: BaseException, plan: Plan) -> int | None:
    """The script's line that trains the model or uses its parameters, if that is why a run without them failed."""
    if (cause := error.__cause__ or error.__context__) is not None and (line := line_of_training(cause, plan)):
        return line  # the script wrapped the failure in one of its own
    running = plan.source if plan.rewritten else plan.script
    frames = list(traceback.walk_tb(error.__traceback__))
    trains = any(str(frame.f_globals.get("__name__")).startswith(_TRAINING) for frame, _ in frames)
    lines = [line for frame, line in frames if frame.f_code.co_filename == running]
    if not (trains and lines and _NO_WEIGHTS.search(str(error))):
        return None
    return dict(plan.original).get(lines[-1], lines[-1])
