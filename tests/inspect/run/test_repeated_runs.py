"""Runs of the fixtures, repeated where the model's package is gone: replayed, mocked and sliced."""

import os
import shutil
from pathlib import Path

import pytest
from fixture_cases import CASES, FIXTURES, PROJECT, ROOT, Case
from recorded_scripts import record

from genwright.inspect.analysis.repository import Repository
from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.replay.program_slice import slice_call
from genwright.inspect.report.run_diff import diff_runs
from genwright.inspect.run.launch import launch, relaunch
from genwright.inspect.run.make_plan import RunOptions

FULL = "GENWRIGHT_FULL_SIZE" in os.environ
SOME = ("async_main", "generators")
# These define their interfaces themselves, and take from the package what is no interface.
OWN = ("click_interface", "rebinds_globals", "local_class")
CHOSEN = [case for case in CASES if FULL or case.name in SOME]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(FIXTURES / "stubs")]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))


def run_and_remove_the_model(case: Case, folder: Path, mode: str = "intercept") -> StoredRun:
    project = folder / "project"
    shutil.copytree(PROJECT, project)
    script = project / case.script.relative_to(PROJECT)
    options, repository = RunOptions(mode, ask=True), Repository(project)
    run = launch(script, case.scenario, case.manifest, options=options, root=folder / "records", repository=repository)
    assert run.data["status"] == "ended", (run.path / "error.txt").read_text()
    if case.name not in OWN:
        shutil.rmtree(project / "tinymodel")
    return run


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_without_its_model_a_run_is_replayed_and_its_last_call_sliced(case: Case, tmp_path: Path) -> None:
    run = run_and_remove_the_model(case, tmp_path)
    again = relaunch(run, "replay")
    assert again.data["status"] == "ended", (again.path / "error.txt").read_text()
    assert list(map(str, diff_runs(run, again))) == [] and again.path != run.path
    assert (again.path / "output.txt").read_text() == (run.path / "output.txt").read_text()
    *_, last = (call for call in run.calls() if call.event in ("create", "run"))
    if case.name != "click_interface":  # a command, whose arguments are the command line's
        made = slice_call(run, last.number)  # which proves it
        assert made.kept < made.total or case.name == "gradio_app"  # a page, which needs everything


@pytest.mark.parametrize("case", [c for c in CASES if FULL or c.name == "class_object"], ids=lambda c: c.name)
def test_a_rewritten_run_is_replayed_and_mocked(case: Case, tmp_path: Path) -> None:
    run = run_and_remove_the_model(case, tmp_path, "rewrite")
    again = relaunch(run, "replay")
    assert list(map(str, diff_runs(run, again))) == []
    mocked = relaunch(run, "mock")
    assert mocked.data["status"] == "ended", (mocked.path / "error.txt").read_text()
    assert [c.interface for c in mocked.calls()] == [c.interface for c in run.calls()]


DRAWN = """
import random
from tinymodel import generate
{seed}
first = generate("a")
generate(first, temperature=random.random())
"""


def test_two_seeded_runs_are_equal_and_two_unseeded_ones_differ_at_the_call(tmp_path: Path) -> None:
    for seed in ("random.seed(7)", "pass"):
        runs = [record(DRAWN.format(seed=seed), tmp_path / seed / name) for name in "ab"]
        found = [(d.line, d.interface, d.where) for d in diff_runs(*runs)]
        assert found == ([(6, "generate", "keywords.temperature")] if seed == "pass" else [])


GENERATED = """
from Inspection.core.executor import Executor
exe = Executor("tinymodel", "simulation")
title = "not needed"
words = ["a", "b"]
words.append("c")
model = exe.create_interface_objects(interface_class_name="Model", path=words[0], size=3)
first = exe.run("stream", prompt=title, n=2)
print(title, exe.run("generate", prompt=" ".join(first)))
"""


def test_a_script_of_the_research_system_is_replayed_and_sliced(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(PROJECT / "tinymodel.toml", tmp_path / "scripts")
    run = record(GENERATED, tmp_path, manifest=None)
    assert run.data["status"] == "ended", (run.path / "error.txt").read_text()
    assert [c.interface for c in run.calls()] == ["Model", "stream", "generate"]
    assert list(map(str, diff_runs(run, relaunch(run, "replay")))) == []
    made = slice_call(run, 3)
    # `print` needs the title, and the items of the stream come from its record.
    assert "words" not in made.text and "sliced(8, 'stream')" in made.text and "prompt=' '.join(first)" in made.text
    assert "sliced(7, 'Model', path=words[0], size=3)" in slice_call(run, 1).text


TRAINED = """
import torch
from tinymodel import Model
model = Model("weights")
model.parameters = getattr(model, "parameters", lambda: [torch.ones(1, requires_grad=True)])
torch.optim.SGD(model.parameters(), lr=0.1).step()
{rest}
"""


@pytest.mark.parametrize(("mode", "rest"), [("replay", "pass"), ("mock", "raise OSError('disk is full')")])
def test_a_script_that_trains_its_model_is_not_repeated_without_it(mode: str, rest: str, tmp_path: Path) -> None:
    run = record(TRAINED.format(rest=rest), tmp_path)
    assert run.data["status"] == ("ended" if rest == "pass" else "failed")
    again = relaunch(run, mode)
    assert again.data["status"] == "refused" and again.data["files"] == []
    assert again.data["message"].startswith("Line 6 trains the model or uses its parameters")
    assert again.printed("error") == ""


PROCESSES = """
import multiprocessing
from tinymodel import generate
def work(number):
    return generate(str(number))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, range(4), chunksize=1))
"""


def test_processes_are_replayed_whatever_their_order(tmp_path: Path) -> None:
    run = record(PROCESSES, tmp_path)
    again = relaunch(run, "replay")
    assert len(list(again.calls())) == 4 and list(map(str, diff_runs(run, again))) == []
    assert (again.path / "output.txt").read_text() == (run.path / "output.txt").read_text()
