"""The source of a run's script: as its author wrote it, and as it ran."""

from dataclasses import dataclass, field
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.source_files import read_script
from genwright.inspect.records.plan_file import read_plan
from genwright.inspect.records.stored_runs import StoredRun


@dataclass(frozen=True)
class PreparedScript:
    """The text that ran, with the scenario's changes, and the original's line for each of its lines."""

    text: str
    original_lines: dict[int, int] = field(default_factory=dict)

    def original_line(self, line: int) -> int:
        return self.original_lines.get(line, line)


def original_source(run: StoredRun) -> str:
    """The script as it was when the run began; of a run that nobody planned, as it is now."""
    script = Path(str(run.data.get("script", "")))
    for path in (run.path / f"original{script.suffix}", script):
        if path.is_file():
            return read_script(path)
    raise UserError(f"The script of {run.name} is neither in its folder nor at {script}.")


def prepared_source(run: StoredRun) -> PreparedScript:
    """The text that the run executed; of a rewritten script the original, which calls the interfaces by their names."""
    plan = read_plan(run.path)
    if plan is None or plan.rewritten or plan.source == plan.script:
        return PreparedScript(original_source(run))
    return PreparedScript(read_script(Path(plan.source)), dict(plan.original))
