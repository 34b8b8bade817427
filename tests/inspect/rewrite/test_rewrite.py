"""Every pattern: located, rewritten, run, and its records compared with what the original passed."""

import ast
import inspect
import os
from pathlib import Path

import pytest
from fixture_cases import CASES, FIXTURES, PROJECT, Case, Run, run

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import rewrite

# What the original cannot do by itself: a page waits for visitors, and two scripts are mended by the scenario.
UNRUNNABLE = {"gradio_app", "streamlit_page", "media_paths", "overridden", "no_entry"}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def rewritten(case: Case, folder: Path) -> Run:
    path = folder / "elsewhere" / case.script.name
    path.parent.mkdir(parents=True)
    path.write_text(case.rewrite().text)
    return run([str(path)], folder / "rewritten")


@each_case
def test_sites_and_arguments(case: Case) -> None:
    location = case.rewrite().analysis.location
    sites = [f"{s.call.lineno} {s.interface.name}: {', '.join(map(str, s.binding.arguments))}" for s in location.sites]
    assert sites == case.settings["sites"]
    assert [f"{u.line} {u.text}" for u in location.unresolved] == case.settings.get("unresolved", [])


@each_case
def test_rewrite_is_the_expected_one(case: Case) -> None:
    text = case.rewrite().text.replace(str(PROJECT), "{root}")
    expected = FIXTURES / "expected" / f"{case.name}.py"
    if os.environ.get("GENWRIGHT_UPDATE_EXPECTED"):  # to be read before it is committed
        expected.write_text(text)
    assert text == expected.read_text()


@each_case
def test_rewrite_runs_and_records_what_the_original_passed(case: Case, tmp_path: Path) -> None:
    made = rewritten(case, tmp_path)
    assert made.code == 0, made.errors
    crossings = [r for r in made.records if r.event in ("run", "create")]
    assert crossings and all(r.status == "returned" for r in crossings)
    if case.name not in UNRUNNABLE:
        command = [*case.settings.get("original", [str(case.script)]), *case.scenario.argv]
        original = run(command, tmp_path / "original", case.scenario.answers)
        assert original.code == 0, original.errors
        assert made.seen == original.seen
    signatures = {i.name: i.signature for i in case.manifest.interfaces}
    calls = [r for r in crossings if r.event == "run"]
    told = [_told(r.interface, r.arguments, r.keywords, signatures[r.interface]) for r in calls]
    assert told == _comparable(made.seen, {r.interface for r in calls})


def _told(name: str, arguments: list, keywords: dict, signature: Signature | None) -> tuple[str, dict]:
    """A record's arguments by parameter, with defaults, as the callee saw them."""
    assert signature is not None
    kinds = {p.name: p for p in signature.parameters}
    parameters = [
        inspect.Parameter(p.name, p.kind, default=inspect.Parameter.empty if p.default is None else _literal(p.default))
        for p in kinds.values()
    ]
    bound = inspect.Signature(parameters).bind(*arguments, **keywords)
    bound.apply_defaults()
    plain = {k: v for k, v in bound.arguments.items() if k != "callback"}
    rest = next((p.name for p in kinds.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    return name, {("**" if k == rest else k): v for k, v in plain.items()}


def _comparable(seen: list[tuple[str, dict]], names: set[str]) -> list[tuple[str, dict]]:
    """What the model noted about the recorded calls, without the object that it was called on."""
    gathered, objects = {"sampling", "options", "kwargs"}, {"model", "colour"}
    return [
        (name, {("**" if k in gathered else k): v for k, v in arguments.items() if k not in objects})
        for name, arguments in seen
        if name in names
    ]


def _literal(text: str) -> object:
    return ast.literal_eval(text) if text != "..." else None


def test_untouched_lines_stay_to_the_letter() -> None:
    for case in CASES:
        made = case.rewrite()
        touched = {line for s in made.analysis.location.sites for line in range(s.call.lineno, s.call.end_lineno + 1)}
        if not case.scenario.overrides and not made.analysis.resources:
            lines = made.text.splitlines()
            for number, line in enumerate(made.analysis.source.splitlines(), 1):
                assert number in touched or line in lines, (case.name, number)


def test_line_ends_and_tabs_are_kept(tmp_path: Path) -> None:
    source = 'from tinymodel import generate\r\ndef main():\r\n\tprint(generate("é", 1))  # ü\r\nmain()\r\n'
    script = tmp_path / "crlf.py"
    script.write_bytes(source.encode())
    made = rewrite(script, load_manifest(PROJECT / "tinymodel.toml"), Scenario(), Repository(tmp_path))
    assert '\tprint(exe.run("generate", prompt="é", max_new_tokens=1))  # ü\r\n' in made.text
    assert made.text.count("\n") == made.text.count("\r\n")


def test_an_own_definition_needs_no_module_of_its_own(tmp_path: Path) -> None:
    """A script is an interface's home also when it is copied elsewhere: the definition travels with it."""
    case = next(c for c in CASES if c.name == "rebinds_globals")
    text = case.rewrite().text
    assert text.index("exe.register(sample)") > text.index("def sample(")
    assert "interfaces=" not in text


@pytest.mark.parametrize(
    "text",
    [
        "def broken(:\n",
        "x = '\n",
        "\x00",
        "class A:\n  def f(self):\n pass\n",
        "x = " + "+".join(["1"] * 5000) + "\n",
        "x = " + "(" * 500 + ")" * 500 + "\n",
        "print 'hello'\n",
    ],
)
def test_what_is_not_python_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(text)
    with pytest.raises(UserError) as told:
        rewrite(script, load_manifest(PROJECT / "tinymodel.toml"), Scenario(), Repository(tmp_path))
    assert str(told.value).count("\n") == 0 and str(told.value).startswith("broken")
