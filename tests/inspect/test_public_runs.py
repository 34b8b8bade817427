"""Scripts of public repositories, rewritten by the whole command, run to their end with nobody there.

GENWRIGHT_PUBLIC_SCRIPTS names a folder of checkouts at the commits of public_cases.py; docs/inspect-projects.md lists
the outcomes. Models are tiny and random where their code runs on a CPU; packages that cannot run here are stubs.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fixture_cases import FIXTURES, ROOT
from public_cases import CASES, HOME, Case

from genwright.inspect.records.stored_runs import Call, stored_runs

STUBS = FIXTURES / "public_stubs"
pytestmark = pytest.mark.skipif(not HOME.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS names no folder of checkouts")


def run(case: Case, folder: Path) -> tuple[str, list[Call]]:
    """Rewrite a script by the command and run what it wrote; what it printed and its records."""
    weights = folder / "weights"
    weights.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nfrom stub_packages import Finder\n"
        f"sys.meta_path.insert(0, Finder(frozenset({case.stubs!r}), {str(STUBS)!r}))\n"
        if case.stubs
        else ""
    )
    # Scripts write beside themselves, so they run in a copy.
    checkout = shutil.copytree(
        case.checkout, folder / "copy" / case.checkout.name, ignore=shutil.ignore_patterns(".git")
    )
    (checkout / ".git").mkdir()
    original = folder / "copy" / case.script
    scenario = case.prepare(weights, checkout)
    # These values are the same in TOML as in JSON.
    lines = [f"{key} = {json.dumps(value)}" for key, value in scenario.items() if isinstance(value, list)]
    for key, table in scenario.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    (folder / "scenario.toml").write_text("\n".join(lines) + "\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GENWRIGHT_RECORDS": str(folder / "records"),
        "GENWRIGHT_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-m", "genwright", "inspect", "rewrite", str(original)]
    command += ["--scenario", str(folder / "scenario.toml"), "--out", str(folder / "rewritten")]
    written = subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert written.returncode == 0, written.stderr
    script = folder / "rewritten" / Path(case.script).with_suffix(".py").name
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=original.parent,
        env=environment,
        input="typed by nobody\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    if case.same:
        command = [sys.executable, str(original), *scenario["argv"]]
        assert subprocess.run(command, cwd=original.parent, capture_output=True, text=True).stdout == done.stdout
    return done.stdout + done.stderr, [call for stored in stored_runs(folder / "records") for call in stored.calls()]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.script.partition("/")[0])
def test_a_rewritten_script_runs_to_its_end(case: Case, tmp_path: Path) -> None:
    if not case.checkout.is_dir():
        pytest.skip(f"{HOME} has no checkout of {case.checkout.name}")
    for package in case.needs:
        pytest.importorskip(package)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=case.checkout, capture_output=True, text=True)
    assert head.stdout.startswith(case.commit), f"{case.checkout.name} is not at {case.commit}"
    output, records = run(case, tmp_path)
    calls = Counter(r.interface for r in records if r.event in ("run", "create"))
    assert all(calls[name] >= count for name, count in case.calls.items()), calls
    assert all(r.status == "returned" for r in records if r.event in ("run", "create"))
    events = Counter(r.event for r in records)
    assert all(events[name] >= count for name, count in case.events.items()), events
    assert case.said in output and "typed by nobody" not in output
