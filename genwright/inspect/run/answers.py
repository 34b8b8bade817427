"""What answers in the model's place in a replayed or mocked run, as its plan says."""

from pathlib import Path

from genwright.inspect.analysis.manifest import Manifest, parse_manifest
from genwright.inspect.run.mock import Mock
from genwright.inspect.run.plan import Plan
from genwright.inspect.run.replay import Replay
from genwright.inspect.run.stand_in_modules import stand_in_for
from genwright.inspect.run.stored_runs import StoredRun


def answers_for(plan: Plan) -> Replay | Mock:
    """The answers; from here on the model's modules can be imported even if they are not there."""
    stand_in_for({t.name: t.homes[0] for t in plan.interfaces if t.homes})
    run = StoredRun(Path(plan.answered_by)) if plan.answered_by else None
    if plan.mode == "replay" and run is not None:
        return Replay(run)
    known = plan.manifest.get("interface")
    return Mock(parse_manifest(plan.manifest, "the plan") if known else Manifest(plan.project, ()), run)
