"""The source of a run's script, as it ran."""

from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.source_files import read_script
from genwright.inspect.run.stored_runs import StoredRun


def script_source(run: StoredRun) -> str:
    """The copy in the run's folder, or else the script's file."""
    for path in (run.path / "script.py", Path(str(run.data.get("script", "")))):
        if path.is_file():
            return read_script(path)
    raise UserError(f"The script of {run.name} is neither in its folder nor at {run.data.get('script')}.")
