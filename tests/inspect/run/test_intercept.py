"""The original file with its interfaces wrapped gives the records that its rewrite gives."""

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fixture_cases import CASES, FIXTURES, PROJECT, ROOT, Case
from recorded_scripts import errors, record

from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.run.launch import launch, relaunch
from genwright.inspect.run.make_plan import RunOptions

FULL = "GENWRIGHT_FULL_SIZE" in os.environ
# One for each way in which a script comes to its interface, its values and its visitors.
SOME = (
    "argparse_options",
    "async_main",
    "click_prompts",
    "generators",
    "gradio_app",
    "local_class",
    "notebook",
    "overridden",
    "rebinds_globals",
    "self_attribute",
    "tools_relative",
)
CHOSEN = [case for case in CASES if FULL or case.name in SOME]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(PROJECT), str(FIXTURES / "stubs")]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))


def run(case: Case, mode: str, root: Path) -> StoredRun:
    options = RunOptions(mode, ask=True)
    return launch(case.script, case.scenario, case.manifest, options=options, root=root, repository=Repository(PROJECT))


def told(call: Call) -> dict[str, Any]:
    """What two runs of the same script agree in."""
    names = ["number", "event", "interface", "object", "line", "arguments", "keywords", "status", "result", "exception"]
    return {name: getattr(call, name) for name in names}


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_intercept_and_rewrite_give_equal_records(case: Case, tmp_path: Path) -> None:
    runs = [run(case, mode, tmp_path / mode) for mode in ("intercept", "rewrite")]
    for made in runs:
        assert made.data["status"] == "ended", (made.path / "error.txt").read_text()
    first, second = ([told(call) for call in made.calls()] for made in runs)
    assert first == second and any(call["event"] in ("run", "create") for call in first)
    outputs = [(made.path / "output.txt").read_text() for made in runs]
    assert outputs[0] == outputs[1]


def test_what_torch_compiles_is_recorded_around_its_graphs(tmp_path: Path) -> None:
    """A compiled interface records its calls; one inside a graph leaves no trace in it."""
    source = """
        import torch

        class Net(torch.nn.Module):
            def forward(self, x, scale=1.0):
                return x * scale

        def step(model, x):
            return model(x).sum()

        def generate(model, x):
            return step(model, x)

        net = Net()
        net(torch.ones(2), 3.0)
        step = torch.compile(step, backend="eager", fullgraph=True)
        generate = torch.compile(generate, backend="eager")
        print(generate(net, torch.ones(2)).item())
        torch.compile(net, backend="eager")(torch.ones(2))
    """
    interfaces = [
        {"name": "generate", "module": "script", "signature": "(model, x)"},
        {"name": "Net", "kind": "class", "module": "script"},
        {"name": "Net.__call__", "module": "script", "signature": "(x, scale=1.0)"},
    ]
    made = record(source, tmp_path, manifest=parse_manifest({"project": "p", "interface": interfaces}, ""))
    assert made.data["status"] == "ended", errors(made)
    calls = [(c.event, c.interface, c.line, list(c.keywords)) for c in made.calls()]
    assert calls == [
        ("create", "Net", 14, []),
        ("run", "Net.__call__", 15, ["x", "scale"]),
        ("run", "generate", 18, ["model", "x"]),
        ("run", "Net.__call__", 19, ["x"]),
    ]


def test_calls_that_no_analysis_follows_are_recorded(tmp_path: Path) -> None:
    source = """
        import functools
        from tinymodel import Model, generate
        models = {"a": generate}
        print(models["a"]("x"), functools.partial(generate, "y")(1), list(map(generate, ["z"])), f"{generate('w')}")

        class Bigger(Model):
            def twice(self):
                return self.generate("inside") + Model.generate(self, "by class")

        if __name__ == "__main__":
            import tinymodel.core as late
            print(Bigger("big").twice(), late.load_model("m").generate("v"))
    """
    made = record(source, tmp_path)
    assert made.data["status"] == "ended", errors(made)
    told = [(c.interface, c.keywords.get("prompt") or c.arguments or c.keywords["path"]) for c in made.calls()]
    texts = [("generate", text) for text in "xyzw"]
    methods = [
        ("Model.generate", ["inside"]),
        ("Model.generate", ["by class"]),
        ("Model", "m"),
        ("Model.generate", ["v"]),
    ]
    assert told == texts + methods


LIBRARY = """
    class Hidden:
        def eval(self): return self
        def answer(self, text): return text.upper()
        def __call__(self, text): return self.answer(text)
    class Auto:
        @classmethod
        def from_pretrained(cls, name): return Hidden()
    def load(name): return Hidden(), str.strip
    def make(name): return Hidden()
"""


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("m = zoo.Auto.from_pretrained('a').eval()\nprint(m.answer('yes'))", ["Auto", "Auto.answer"]),
        ("m, tidy = zoo.load('a')\nm.eval()\nprint(m.answer(tidy(' yes')))", ["load_0.answer"]),
        ("m = zoo.make('a')\nm.eval()\nprint(m('yes'))", ["make", "make.__call__"]),
    ],
)
def test_models_whose_class_nothing_tells_are_recorded(text: str, calls: list[str], tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "zoo.py").write_text(textwrap.dedent(LIBRARY))
    source, found = f"import zoo\n{text}\n", []
    for mode in ("intercept", "rewrite"):
        made = record(source, tmp_path / mode, manifest=None, mode=mode, path=[library])
        again = relaunch(made, "replay")
        assert (made.path / "output.txt").read_text() == (again.path / "output.txt").read_text() == "YES\n", errors(
            again
        )
        found += [[told(call) for call in each.calls()] for each in (made, again)]
    assert [[call["interface"] for call in each] for each in found] == [calls] * 4
    assert found[0] == found[2]


def test_a_traceback_shows_the_lines_of_a_notebook(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": "from tinymodel import generate\nprint(1)\ngenerate(missing)"}
    made = record(json.dumps({"cells": [cell]}, indent=1), tmp_path, name="script.ipynb")
    assert "line 4, in <module>\n    generate(missing)\n" in errors(made)
