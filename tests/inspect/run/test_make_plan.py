"""Plans: what the run's process is told about the script."""

from pathlib import Path

import pytest
from fixture_cases import CASES, PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario, load_scenario
from genwright.inspect.records.plan_file import read_plan
from genwright.inspect.run.make_plan import PlannedRun, RunOptions, plan_run

CASE = {case.name: case for case in CASES}


def planned(name: str, mode: str = "intercept", scenario: Scenario | None = None) -> PlannedRun:
    case = CASE[name]
    options = RunOptions(mode, ask=True)
    return plan_run(case.script, case.manifest, scenario or case.scenario, Repository(PROJECT), options)


def test_an_unchanged_script_runs_from_its_own_file(tmp_path: Path) -> None:
    made = planned("class_object")
    assert made.text is None and made.plan.source == made.plan.script and not made.plan.original
    written = read_plan(tmp_path) if made.write(tmp_path) else None
    assert written is not None and written.interfaces == made.plan.interfaces and written.path == made.plan.path
    targets = {t.name: t for t in made.plan.interfaces}
    assert targets["Model"].homes == ["tinymodel", "tinymodel.core"]
    assert targets["Model"].factories == {"from_config": "tinymodel.core", "load_model": "tinymodel.core"}


@pytest.mark.parametrize("mode", ["intercept", "rewrite"])
def test_lines_of_a_changed_script_are_those_of_the_original(mode: str) -> None:
    made = planned("overridden", mode)
    assert made.text is not None
    original = CASE["overridden"].script.read_text().splitlines()
    lines = made.text.splitlines()
    for new, old in made.plan.original:
        told = original[old - 1].split("(")[0].strip()
        assert told.split("=")[0].strip() in lines[new - 1] or "generate" in told
    assert len(made.plan.original) == len(original)


def test_a_script_with_an_executor_of_its_own_is_run_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "generated.py"
    script.write_text("from Inspection.core.executor import Executor\nexe = Executor('demo', 'dumb')\nexe.run('f')\n")
    made = plan_run(script, None, Scenario(), Repository(tmp_path), RunOptions())
    assert (made.plan.project, made.plan.label, made.plan.interfaces, made.text) == ("demo", "dumb", [], None)


def test_secrets_of_a_scenario_reach_the_run_only() -> None:
    scenario = Scenario(argv=["--token", "abcdefgh"], environment={"A_TOKEN": "12345678", "PLAIN": "p"})
    made = planned("class_object", "rewrite", scenario)
    assert made.environment["A_TOKEN"] == "12345678" and made.argv == ["--token", "abcdefgh"]
    assert made.plan.argv == ["--token", "[redacted]"] and made.plan.scenario["environment"] == {"PLAIN": "p"}
    assert made.text is not None and "abcdefgh" not in made.text and "12345678" not in made.text


def test_resources_beside_a_scenario_are_found(tmp_path: Path) -> None:
    (tmp_path / "here.bin").touch()
    (tmp_path / "s.toml").write_text('failures = "none"\n[resources]\na = "here.bin"\nb = "elsewhere.bin"\n')
    scenario = load_scenario(tmp_path / "s.toml")
    assert scenario.resources == {"a": str(tmp_path / "here.bin"), "b": "elsewhere.bin"} and scenario.failures == "none"
    (tmp_path / "s.toml").write_text('failures = "maybe"\n')
    with pytest.raises(UserError, match="`failures` is one of raise, none"):
        load_scenario(tmp_path / "s.toml")


def test_a_plan_of_another_version_is_none(tmp_path: Path) -> None:
    planned("class_object").write(tmp_path)
    assert read_plan(tmp_path) is not None
    text = (tmp_path / "plan.json").read_text()
    for other in ("{}", text.replace('"label"', '"title"'), "[1]"):
        (tmp_path / "plan.json").write_text(other)
        assert read_plan(tmp_path) is None
