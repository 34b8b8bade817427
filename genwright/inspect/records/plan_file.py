"""The plan of a run: what the processes of a run need to know, in `plan.json` of its folder."""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from genwright.inspect.records.call_site import CallSites, Range
from genwright.inspect.records.stored_runs import write_json

SITE = Path(__file__).parents[1] / "run" / "site_packages"
PLAN = "plan.json"
REFUSED = "refused.txt"  # of a run's folder: why the run could not go on without its model
RUN = "GENWRIGHT_RUN"  # the environment variable by which processes of a run find it: "PID FOLDER" of who made it


@dataclass(frozen=True)
class Target:
    """An interface to wrap: where it can be imported from, and the factories of a class with their modules."""

    name: str
    kind: str
    homes: list[str]
    factories: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How a script is run: the original file with its interfaces wrapped, or a script that calls the executor."""

    project: str
    label: str
    mode: str  # intercept, rewrite, replay or mock
    script: str  # the original
    source: str  # the file that runs: the original, or one in the run's folder
    argv: list[str]
    path: list[str]  # put in front of sys.path
    rewritten: bool = False  # the source calls the executor itself, under the name of its own file
    package: str = ""
    resources: str = ""  # the script's name for the folder of samples
    interfaces: list[Target] = field(default_factory=list)
    defined: dict[str, list[Range]] = field(default_factory=dict)  # lines of what the script itself defines
    lines: dict[str, list[Range]] = field(default_factory=dict)  # lines of each interface's sites
    original: list[tuple[int, int]] = field(default_factory=list)  # of a rewritten script: its line, the original's
    files: dict[str, list[str]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    scenario: dict[str, Any] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)  # where manifests are looked for first
    readable: list[str] = field(default_factory=list)  # what the run may read besides the repository
    answered_by: str = ""  # the folder of the run that a replay or mock takes its results from
    manifest: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_json(folder / PLAN, asdict(self))

    @property
    def sites(self) -> CallSites:
        """The located sites."""
        running = self.source if self.rewritten else self.script
        return CallSites(self.script, self.lines, self.defined, dict(self.original), running)


def read_plan(folder: Path) -> Plan | None:
    """The plan of a run; None if the script was started by itself, or by a version with other plans."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return Plan(**data | {"interfaces": [Target(**t) for t in data["interfaces"]]})
    return None


def current_plan() -> Plan | None:
    """The plan of the run that this process is part of."""
    _, _, folder = os.environ.get(RUN, "").partition(" ")
    return read_plan(Path(folder)) if folder else None


def lead_children_here() -> None:
    """Put our `sitecustomize` in front for the processes that this one starts, whatever the script's environment is."""
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(SITE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *path])
