"""The research system's generated scripts run unmodified, with stub packages, up to their first call of an interface.

GENWRIGHT_PUBLIC_SCRIPTS names a folder with a checkout of Inspection_release; see docs/inspect-projects.md.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import ROOT

HOME = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent")) / "Inspection_release" / "DataSet"
pytestmark = pytest.mark.skipif(not HOME.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS names no checkout of the dataset")
RUNNER = Path(__file__).with_name("stub_packages.py")


def parses(script: Path) -> bool:
    try:
        return bool(ast.parse(script.read_text(encoding="utf-8")))
    except SyntaxError:
        return False


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    name = script.parent.name
    work = folder / script.stem / name
    work.mkdir(parents=True)
    shutil.copy(HOME / "InterfaceInfo" / f"{name}.json", work / f"{name}.json")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GENWRIGHT_HOME": str(folder / "home"),
        "GENWRIGHT_RECORDS": str(folder / "records"),
    }
    command = [sys.executable, "-W", "ignore", str(RUNNER), str(script), name]
    return subprocess.run(
        command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def test_generated_scripts_reach_their_first_call(tmp_path: Path) -> None:
    scripts = sorted((HOME / "Verification_simulator" / "simulate_interface").glob("*/*_v2.py"))
    readable = [s for s in scripts if parses(s)]
    failed = {}
    for script in readable:
        done = run(script, tmp_path)
        if not done.stdout.splitlines() or not done.stdout.splitlines()[-1].startswith("reached "):
            failed[f"{script.parent.name}/{script.name}"] = (done.stderr.strip().splitlines() or ["no output"])[-1]
    print(json.dumps(failed, indent=1))
    print(f"{len(readable) - len(failed)} of {len(readable)} that parse, of {len(scripts)}")
    # Python before 3.12 cannot parse four of the scripts: their f-strings repeat their quotes.
    assert len(scripts) == 101 and len(readable) - len(failed) >= 95 - (len(scripts) - len(readable))
