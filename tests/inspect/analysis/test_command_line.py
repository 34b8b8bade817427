"""Command lines: defaults are what argparse itself gives, and what is missing is named."""

import argparse
import ast
import runpy
import sys
from pathlib import Path

import pytest
from fixture_cases import PROJECT

from genwright.inspect.analysis.cli_options import CommandLine
from genwright.inspect.analysis.command_line import read_command_line
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.repository import Repository


def read(script: Path) -> CommandLine:
    tree = ast.parse(script.read_text())
    return read_command_line(tree, Flow(tree, "", lambda _: None), Repository(script.parent), script)


class _Parsed(Exception):
    pass


def real_parser(script: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """The parser that the script itself builds, caught when it is asked to parse."""
    caught: list[argparse.ArgumentParser] = []

    def parse_args(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        caught.append(self)
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.syspath_prepend(str(PROJECT))
    monkeypatch.setattr(sys, "argv", [str(script)])
    with pytest.raises(_Parsed):
        runpy.run_path(str(script), run_name="__main__")
    return caught[0]


SHARED = """
from pathlib import Path
DEFAULTS = dict(steps=40, sampler="heun", s_tmax=float("inf"))
def more():
    settings = dict(DEFAULTS, rate=1e-4)
    settings.update({"classes": None, "flag": True})
    return settings
def add_all(parser, settings):
    for key, value in settings.items():
        kind = type(value)
        if value is None:
            kind = str
        elif isinstance(value, bool):
            kind = str2bool
        parser.add_argument(f"--{key}", default=value, type=kind)
def str2bool(text):
    return text.lower() in ("yes", "true")
"""
SCRIPT = """
import argparse, os
from shared import more, add_all, DEFAULTS
HOME = Path = None
LAYERS = [1, 2] * 2
def create():
    settings = dict(seed=42, name="a" + "b", path=os.path.join("x", "y"))
    settings.update(more())
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("g")
    group.add_argument("-n", "--number", type=int, default=-3, help="a number")
    both = parser.add_mutually_exclusive_group()
    both.add_argument("--yes", action="store_true")
    both.add_argument("--no", action="store_const", const=5, default=1)
    parser.add_argument("--layers", nargs="*", default=LAYERS)
    parser.add_argument("--device", default=os.environ.get("NO_SUCH_VARIABLE", "cpu"))
    parser.add_argument("--bool", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("rest", nargs="?")
    parser.set_defaults(seed=43, extra=1)
    add_all(parser, settings)
    return parser
if __name__ == "__main__":
    create().parse_args()
"""


def compare(script: Path, parser: argparse.ArgumentParser) -> None:
    options = {o.name: o for o in read(script).options}
    actions = {a.dest: a for a in parser._actions if a.dest != "help"}
    assert set(options) == set(actions)
    for name, action in actions.items():
        option, default = options[name], parser.get_default(name)
        assert str(option.default) == str(default) and option.required == action.required, name
        assert option.flags == tuple(action.option_strings) and option.help == (action.help or "")
        assert option.choices == tuple(action.choices or ())


def test_defaults_are_what_argparse_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compare(PROJECT / "argparse_options.py", real_parser(PROJECT / "argparse_options.py", monkeypatch))
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    compare(tmp_path / "script.py", real_parser(tmp_path / "script.py", monkeypatch))


def test_what_is_not_known_is_told_by_its_source(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import argparse, torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "p = argparse.ArgumentParser()\np.add_argument('--device', default=device, choices=torch.devices())\n"
        "p.add_argument('--type', type=torch.kind)\np.parse_args()\n"
    )
    device, kind = read(script).options
    assert isinstance(device.default, Unknown)
    assert device.default.text == "'cuda' if torch.cuda.is_available() else 'cpu'"
    assert kind.type == "torch.kind"


def test_nothing_of_the_repository_runs(tmp_path: Path) -> None:
    """The interpreter computes; it never calls what the script brings along."""
    script = tmp_path / "script.py"
    script.write_text(
        "import argparse, os, pathlib\nopen('made', 'w')\nos.system('touch made')\n"
        "pathlib.Path('made').write_text('')\nwhile True: pass\n"
        "x = [0] * 10**12\ny = 'a'.join(str(i) for i in range(10**9))\np = argparse.ArgumentParser()\n"
        "p.add_argument('--x', default=__import__('os').system('touch made'))\np.parse_args()\n"
    )
    assert [o.name for o in read(script).options] == ["x"]
    assert not (tmp_path / "made").exists() and not Path("made").exists()


@pytest.mark.parametrize(
    ("script", "argv", "missing"),
    [
        ("argparse_options", [], ["--prompt (str): What to continue."]),
        ("argparse_options", ["--prompt=x"], []),
        ("argparse_subcommands", [], ["COMMAND (one of ask, load): which command to run"]),
        ("argparse_subcommands", ["ask"], ["ask QUESTION (str): The question."]),
        ("argparse_subcommands", ["load", "a", "b"], []),
        ("click_command", [], ["--prompt (str): What to continue.", "PATH (str)"]),
        ("click_command", ["--tokens", "2", "file"], ["--prompt (str): What to continue."]),
        ("click_command", ["--loud", "--prompt", "x", "file"], []),
        ("typer_command", [], ["PROMPT (str)"]),
        ("typer_command", ["--tokens", "2"], ["PROMPT (str)"]),
        ("fire_command", ["--tokens", "2"], ["--prompt (str)"]),
        ("fire_command", ["hello"], []),
        ("argv_script", ["one"], ["ARGUMENT_2 (str): sys.argv[2], read in line 6"]),
    ],
)
def test_every_missing_value_is_named_with_type_and_help(script: str, argv: list[str], missing: list[str]) -> None:
    found = read(PROJECT / f"{script}.py").missing(argv)
    assert [o.describe() for o in found][: len(missing)] == missing and bool(found) == bool(missing)


def test_defaults_of_click_and_typer() -> None:
    click = {o.name: o for o in read(PROJECT / "click_command.py").options}
    assert (click["tokens"].default, click["tokens"].type, click["mode"].choices) == (3, "int", ("a", "b"))
    assert click["text"].flags == ("--prompt",) and not click["loud"].takes_value
    typer = {o.name: o for o in read(PROJECT / "typer_command.py").options}
    assert (typer["tokens"].default, typer["style"].default, typer["seed"].default) == (2, "plain", None)
    assert typer["style"].help == "The style." and typer["tokens"].flags == ("--tokens",)


GROUP = """
import click
@click.group()
@click.option("--debug", is_flag=True)
def cli(debug): ...
@cli.command()
@click.argument("path")
def load(path): ...
@cli.command("ask")
@click.option("-q", "--question", required=True, type=str, help="What to ask.")
def ask_it(question): ...
cli()
"""
COMMANDS = """
import typer
app = typer.Typer()
@app.command()
def load(path: str): ...
@app.command()
def ask_it(question: str = typer.Option(..., help="What to ask."), n: int = 1): ...
app()
"""
FIRE_CLASS = """
import fire
class Tool:
    def __init__(self, path, size=1): ...
    def run(self): ...
fire.Fire(Tool)
"""


@pytest.mark.parametrize(
    ("source", "argv", "missing"),
    [
        (GROUP, [], ["COMMAND (one of load, ask): which command to run"]),
        (GROUP, ["--debug", "load"], ["load PATH (str)"]),
        (GROUP, ["ask", "-q", "x"], []),
        (GROUP, ["ask"], ["ask --question (str): What to ask."]),
        (COMMANDS, ["ask-it"], ["ask-it --question (str): What to ask."]),
        (COMMANDS, ["load", "file"], []),
        (FIRE_CLASS, [], ["--path (str)", "COMMAND (one of run): which method to run"]),
    ],
)
def test_several_commands(source: str, argv: list[str], missing: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(source)
    assert [o.describe() for o in read(tmp_path / "script.py").missing(argv)] == missing
