"""Scenarios are checked when they are read, and `[set]` takes effect whatever form the name has."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from fixture_cases import CASES, PROJECT, run

from genwright.errors import UserError
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario, literal, load_scenario, parse_scenario
from genwright.inspect.rewrite.rewrite import rewrite

MANIFEST = load_manifest(PROJECT / "tinymodel.toml")


def test_every_part_of_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        'argv = ["--n", 3]\nanswers = ["a"]\ninterface = "generate"\nassertions = ["calls == 2"]\n'
        '[environment]\nCUDA_VISIBLE_DEVICES = ""\n[resources]\n"path/to/a.jpg" = "b.jpg"\n[limits]\nseconds = 60\n'
        "[set]\nmain.num_samples = 1\nrun_sampling.Args.use_fp16 = false\n"
    )
    scenario = load_scenario(path)
    assert scenario.argv == ["--n", "3"] and scenario.interface == ["generate"]
    assert scenario.overrides == {"main.num_samples": 1, "run_sampling.Args.use_fp16": False}
    assert scenario.for_run() == {
        "environment": {"CUDA_VISIBLE_DEVICES": ""},
        "limits": {"seconds": 60},
        "assertions": ["calls == 2"],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("argv = 3", "`argv` is a list of texts"),
        ("answers = [1]", "`answers` is a list of texts"),
        ("surprise = 1", "a scenario has no 'surprise'"),
        ("[limits]\nseconds = -1", "positive number"),
        ("[limits]\nsecond = 1", "is not one of seconds"),
        ('[set]\n"main.1" = 2', "is not a qualified name"),
        ("[ui]\nhandle = 'x'", "[ui] has `handler`"),
        ("environment = 1", "[environment] is a table"),
        ("argv = [", "is not valid TOML"),
    ],
)
def test_a_wrong_scenario_is_one_sentence(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(UserError) as error:
        load_scenario(tmp_path / "s.toml")
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", [1, -2.5, "a'b\n", True, [1, ["x"]], {"a b": 1}, float("inf"), float("nan")])
def test_values_are_written_as_python(value: Any) -> None:
    assert repr(eval(literal(value))) == repr(value)


def test_overrides_take_effect(tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "overridden")
    script = tmp_path / "overridden.py"
    script.write_text(case.rewrite().text)
    done = run([str(script)], tmp_path / "run")
    assert done.code == 0 and done.output.splitlines()[-1] == "8 new [1, 2] 0.5"
    expected = {"top_k": 10, "fp16": False, "repeat": 5, "seed": 2, "loud": True}
    seen = ("generate", {"prompt": "hello", "max_new_tokens": 6, "temperature": 1.0, "sampling": expected})
    # `num_samples = 1` holds although the caller passes 2.
    assert done.seen == [seen]
    listed = tomllib.loads("[set]\n" + "LIMIT = 8\nmain.num_samples = 1")["set"]
    told = (done.folder / "run.json").read_text()
    assert '"LIMIT": 8' in told and '"main.num_samples": 1' in told and listed["main"]["num_samples"] == 1


def test_what_a_name_was_before_is_known() -> None:
    before = next(c for c in CASES if c.name == "overridden").rewrite().overridden
    assert before["LIMIT"] == "7" and before["main.num_samples"] == "3" and before["Config.seed"] == "1"
    assert before["MISSING"] == before["main.Args.use_fp16"] == ""


@pytest.mark.parametrize(
    ("source", "name", "value", "result"),
    [
        ("class A: pass", "A.x", 1, "class A: pass; x = 1"),
        ("def f(a, b): return a", "f.b", 2, "def f(a, b): b = 2; return a"),
        (
            "def f():\n    '''Doc.'''\n    return 1",
            "f.new",
            "t",
            "def f():\n    '''Doc.'''\n    new = 't'\n    return 1",
        ),
        ("class A:\n    x: int", "A.x", 3, "class A:\n    x: int = 3"),
        ("async def f(*, k=1): ...", "f.k", 4, "async def f(*, k=4): ..."),
        ("if True: args = object()", "args.n", 5, "if True: args = object(); args.n = 5"),
        ("x = y = 1; z = 2", "y", 6, "x = y = 6; z = 2"),
        ("@decorate\nclass A:\n    def f(self, n=1): ...", "A.f.n", 2, "    def f(self, n=2): ..."),
    ],
)
def test_overrides_of_every_form(source: str, name: str, value: Any, result: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(source + "\n")
    made = rewrite(script, MANIFEST, parse_scenario({"set": {name: value}}, "test"), Repository(tmp_path))
    assert result in made.prepared.source


def test_an_override_without_a_place_names_what_there_is(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def main(): ...\n")
    with pytest.raises(UserError, match=r"\[set\] mian.x: the script has no 'mian'; it has main\."):
        rewrite(script, MANIFEST, Scenario(overrides={"mian.x": 1}), Repository(tmp_path))


def test_only_the_interfaces_that_are_asked_for() -> None:
    case = next(c for c in CASES if c.name == "click_command")
    made = rewrite(case.script, MANIFEST, Scenario(interface=["Model.generate"]), Repository(PROJECT))
    assert [s.interface.name for s in made.analysis.location.sites] == ["Model", "Model.generate"]
    with pytest.raises(UserError, match="has no interface 'paint'"):
        rewrite(case.script, MANIFEST, Scenario(interface=["paint"]), Repository(PROJECT))


def test_resources_of_the_scenario_replace_literals(tmp_path: Path) -> None:
    script = PROJECT / "media_paths.py"
    made = rewrite(script, MANIFEST, Scenario(resources={"path/to/model.pth": "/data/m.pth"}), Repository(PROJECT))
    assert "checkpoint = '/data/m.pth'" in made.text
    with pytest.raises(UserError, match=r"is no text literal of media_paths\.py"):
        rewrite(script, MANIFEST, Scenario(resources={"nowhere.png": "x"}), Repository(PROJECT))


def test_a_handler_must_exist_and_take_its_arguments() -> None:
    script = PROJECT / "gradio_app.py"
    for scenario, told in [
        (Scenario(handlers=["nobody"]), "has no 'nobody'; it has chat, clear"),
        (Scenario(handlers=["chat"], handler_arguments={"style": "a", "colour": 1}), "has no parameter 'colour'"),
    ]:
        with pytest.raises(UserError, match=told):
            rewrite(script, MANIFEST, scenario, Repository(PROJECT))
    with pytest.raises(UserError, match="starts no user interface and no server"):
        rewrite(PROJECT / "input_loop.py", MANIFEST, Scenario(handlers=["main"]), Repository(PROJECT))
    # The one handler that crosses the model needs no choice.
    made = rewrite(script, MANIFEST, Scenario(), Repository(PROJECT))
    assert made.scenario.handlers == ["chat"] and not made.missing and not made.chosen
