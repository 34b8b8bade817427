"""The scripts that this project began with run to their end with the scenarios in docs/examples/inspect.

The seed documents are not part of the project; they are looked for beside the checkout.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import ROOT

from genwright.inspect.records.stored_runs import StoredRun, open_run
from genwright.inspect.records.stored_values import load_value

EXAMPLES = ROOT / "docs" / "examples" / "inspect"
SEEDS = Path(os.environ.get("GENWRIGHT_SEEDS", ROOT.parent / "shared" / "seeds"))


pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason="GENWRIGHT_SEEDS names no folder of the seed documents")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenarios beside their checkpoints."""
    folder = tmp_path_factory.mktemp("examples")
    for scenario in EXAMPLES.glob("*.toml"):
        shutil.copy(scenario, folder)
    command = [sys.executable, str(EXAMPLES / "make_checkpoints.py"), str(folder)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return folder


def seed(number: str, heading: str = "") -> str:
    """The first listing of a seed document, behind a heading."""
    text = next(SEEDS.glob(f"{number}_*.txt")).read_text(encoding="utf-8")
    found = re.search(r"```(?:python)?\n(.*?)```", text.partition(heading)[2] if heading else text, re.DOTALL)
    assert found is not None
    return found[1]


def run(script: Path, scenario: Path, folder: Path) -> StoredRun:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GENWRIGHT_RUN": ""}
    command = [sys.executable, "-m", "genwright", "inspect", "run", str(script), "--scenario", str(scenario)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return open_run("last", folder / "records")


@pytest.mark.parametrize(
    ("number", "name", "interfaces"),
    [
        ("000", "gpt_fast", {"generate"}),
        ("001", "FlexLLMGen", {"OptLM", "OptLM.generate"}),
        ("004", "consistency_models", {"karras_sample"}),
    ],
)
def test_the_final_script_of_a_trace(
    number: str, name: str, interfaces: set[str], examples: Path, tmp_path: Path, full_size: bool
) -> None:
    if name != "consistency_models" and not full_size:
        pytest.skip("GENWRIGHT_FULL_SIZE: it takes a minute")
    script = tmp_path / "trace.py"
    script.write_text(seed(number, "代码优化结果"), encoding="utf-8")
    made = run(script, examples / f"{name}.scenario.toml", tmp_path)
    assert made.data["status"] == "ended" and made.data["label"] == "simulation"
    calls = list(made.calls())
    assert {c.interface for c in calls} == interfaces and all(c.status == "returned" for c in calls)
    assert load_value(calls[-1]) is not None
    if name == "consistency_models":
        assert (made.path / "samples_4x16x16x3.npz").is_file()
    assert len(list(made.path.glob(f"simulation/{name}_*/*/result_data.json"))) == len(calls)


def test_pytorchs_benchmark_on_tiny_shapes(examples: Path, tmp_path: Path) -> None:
    if (original := os.environ.get("GENWRIGHT_TORCHBENCH")) is None:
        pytest.skip("GENWRIGHT_TORCHBENCH names no copy of PyTorch's benchmarks/gpt_fast")
    script = tmp_path / "benchmark" / "generate.py"
    script.parent.mkdir()
    shutil.copy(Path(original) / "generate.py", script)
    made = run(script, examples / "torchbench.scenario.toml", tmp_path)
    assert [c.interface for c in made.calls()] == ["run_experiment"] * 3
    assert (made.path / "output.txt").read_text().count("Average tokens/sec") == 3


def test_a_listing_that_does_not_parse_is_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "listing.py"
    script.write_text(seed("002"), encoding="utf-8")
    command = [sys.executable, "-m", "genwright", "inspect", "run", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1 and len(lines) == 1
    assert lines[0].startswith("genwright: listing.py is not Python that can be read: line ")
