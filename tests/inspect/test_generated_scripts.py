"""The research system's generated scripts run unmodified, with stub packages, up to their first call of an interface.

GENWRIGHT_PUBLIC_SCRIPTS names a folder with a checkout of Inspection_release; see docs/inspect-projects.md.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import ROOT

from genwright.inspect.media.samples import sample_folder

HOME = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent")) / "Inspection_release" / "DataSet"
pytestmark = pytest.mark.skipif(not HOME.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS names no checkout of the dataset")
RUNNER = Path(__file__).with_name("stub_packages.py")
PARSE = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read())"


def newest_python() -> str:
    """Python before 3.12 cannot parse four of the scripts: their f-strings repeat their own quotes."""
    for name in ("python3.13", "python3.12"):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return sys.executable


def run(python: str, script: Path, folder: Path) -> str:
    """What a script came to: "reached ..." or its last line."""
    if subprocess.run([python, "-W", "ignore", "-c", PARSE, str(script)], capture_output=True).returncode:
        return "does not parse"
    name = script.parent.name
    work = folder / script.stem / name
    work.mkdir(parents=True)
    shutil.copy(HOME / "InterfaceInfo" / f"{name}.json", work / f"{name}.json")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GENWRIGHT_RECORDS": str(folder / "records")}
    done = subprocess.run(
        [python, "-W", "ignore", str(RUNNER), str(script), name],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout.strip().splitlines()[-1:]
    reached = bool(said) and said[0].startswith("reached ")
    return said[0] if reached else (done.stderr.strip().splitlines() or ["no output"])[-1]


def test_generated_scripts_reach_their_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    sample_folder()  # made here, since the newest Python may have no Pillow
    python = newest_python()
    scripts = sorted((HOME / "Verification_simulator" / "simulate_interface").glob("*/*_v2.py"))
    results = {f"{s.parent.name}/{s.name}": run(python, s, tmp_path) for s in scripts}
    unreadable = [name for name, result in results.items() if result == "does not parse"]
    reached = [name for name, result in results.items() if result.startswith("reached ")]
    print(json.dumps({n: r for n, r in results.items() if n not in reached}, indent=1))
    print(f"{python}: {len(reached)} of {len(scripts)}; {len(unreadable)} do not parse")
    assert len(scripts) == 101 and len(reached) >= 95 - len(unreadable)
