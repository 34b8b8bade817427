"""A script is written without being asked, and runs with what was chosen."""

from pathlib import Path

import pytest
from fixture_cases import PROJECT, run

from genwright.inspect.analysis.complete import readme_examples
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario, parse_scenario, to_toml
from genwright.inspect.analysis.value_choices import TEXT
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

MANIFEST = load_manifest(PROJECT / "tinymodel.toml")


def completed(source: str, folder: Path, scenario: Scenario | None = None) -> Rewrite:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text("from tinymodel import generate\n" + source)
    return rewrite(folder / "script.py", MANIFEST, scenario or Scenario(), Repository(folder), ask=False)


ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("words", nargs=2)
parser.add_argument("--mode", required=True, choices=["fast", "slow"])
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
generate(f"{args.words} {args.mode}", args.steps)
"""
COMMANDS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--name", required=True)
commands = parser.add_subparsers(dest="what", required=True)
commands.add_parser("version")
commands.add_parser("talk").add_argument("--prompt", required=True)
args = parser.parse_args()
def version():
    return 1
def talk():
    generate(args.prompt, 1)
{"version": version, "talk": talk}[args.what]()
"""
CLICK = """
import click
@click.command()
@click.argument("prompt")
@click.option("--mode", type=click.Choice(["fast", "slow"]), required=True)
def talk(prompt, mode):
    generate(f"{prompt} {mode}", 1)
"""
PARAMETRIZED = """
import pytest
@pytest.mark.parametrize("prompt, count", [("hi", 2), ("ho", 3)])
def test_talk(prompt, count):
    generate(prompt, count)
"""
CLASS = """
class Demo:
    def __init__(self, name: str):
        self.prompt = ""
    def prepare(self):
        self.prompt = "ready"
        generate("first", 1)
    def talk(self):
        generate(self.prompt, 1)
"""


@pytest.mark.parametrize(
    ("source", "prompts"),
    [
        (ARGPARSE, [f"{[TEXT, TEXT]} fast"]),
        (COMMANDS, [TEXT]),
        (CLICK, [f"{TEXT} fast"]),
        (PARAMETRIZED, ["hi"]),
        (CLASS, ["first", "ready"]),
        ("def talk(prompt, count: int):\n    generate(prompt, count)\n", [TEXT]),
        ("async def talk(prompt: str):\n    generate(prompt, 1)\n", [TEXT]),
        ("import sys\ngenerate(sys.argv[1], 1)\n", [TEXT]),
    ],
)
def test_a_script_runs_with_what_was_chosen(source: str, prompts: list[str], tmp_path: Path) -> None:
    made = completed(source, tmp_path / "original")
    assert made.chosen and not made.missing
    (tmp_path / "new.py").write_text(made.text)
    done = run([str(tmp_path / "new.py")], tmp_path / "run")
    assert done.code == 0, done.errors
    assert [keywords["prompt"] for _, keywords in done.seen] == prompts


def test_a_scenario_comes_first_and_nothing_else_is_chosen(tmp_path: Path) -> None:
    made = completed(ARGPARSE, tmp_path, Scenario(argv=["a", "b", "--mode", "slow"]))
    assert [c.name for c in made.chosen] == ["--steps"]
    assert made.scenario.argv == ["a", "b", "--mode", "slow", "--steps", "1"]


def test_examples_of_the_readme(tmp_path: Path) -> None:
    readme = "Run:\n```\npython script.py one two \\\n  --mode slow --steps 7\npython script.py <path> --mode x\n```\n"
    (tmp_path / "README.md").write_text(readme)
    assert readme_examples(tmp_path, tmp_path / "script.py")[0] == ["one", "two", "--mode", "slow", "--steps", "7"]
    made = completed(ARGPARSE, tmp_path)
    assert made.scenario.argv == ["one", "two", "--mode", "slow", "--steps", "7"]
    assert {c.reason for c in made.chosen} == {"from an example of the README"}


def test_an_example_that_asks_for_help_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("python script.py --help\npython script.py one two --mode slow --steps 7\n")
    assert completed(ARGPARSE, tmp_path).scenario.argv == ["one", "two", "--mode", "slow", "--steps", "7"]
    assert capsys.readouterr().out == ""


def test_an_example_names_a_picture_that_is_still_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("python script.py --input no.jpg --output out.jpg\n")
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--input", required=True)
parser.add_argument("--output", required=True)
args = parser.parse_args()
print(generate(args.input, 1))
"""
    chosen = {c.name: c for c in completed(text, tmp_path).chosen}
    assert (chosen["--output"].value, chosen["--output"].reason) == ("out.jpg", "from an example of the README")
    assert chosen["--input"].reason != "from an example of the README"


def test_yes_answers_questions_of_yes_or_no(tmp_path: Path) -> None:
    source = "if input('Go on? [Y/n] ') == 'y':\n    generate('first', 1)\ninput('Again (y/n)? ')\n"
    made = completed(source, tmp_path / "original")
    assert made.scenario.answers == ["y", "y"] and [str(c.name) for c in made.chosen] == ["answers", "answers"]
    assert "line 2" in made.chosen[0].reason
    (tmp_path / "new.py").write_text(made.text)
    assert run([str(tmp_path / "new.py")], tmp_path / "run").seen[0][1]["prompt"] == "first"


def test_answers_are_chosen_only_where_every_question_offers_them(tmp_path: Path) -> None:
    asked = "name = input('Name: ')\ngenerate(name)\ninput('Again? [y/n] ')\n"
    assert completed(asked, tmp_path).scenario.answers == []
    given = completed("generate(input('Go on? [y/n] '))\n", tmp_path, Scenario(answers=["n"]))
    assert given.scenario.answers == ["n"] and not given.chosen


PAGE = """
import gradio as gr
def clear():
    return ""
def talk(message):
    return generate(message, 1)
def main():
    with gr.Blocks() as demo:
        box = gr.Textbox()
        box.submit(talk, box).then(clear)
        box.change(lambda text: generate(text, 2), box)
    demo.launch()
main()
"""


def test_the_handlers_of_a_page_are_those_that_cross_the_model(tmp_path: Path) -> None:
    made = completed(PAGE, tmp_path)
    assert made.scenario.handlers == ["talk", "main.<lambda>"]
    assert [c.name for c in made.chosen] == ["ui.handler"] and "demo.launch()" in made.text
    asked = rewrite(tmp_path / "script.py", MANIFEST, Scenario(), Repository(tmp_path))
    assert asked.missing == ["ui.handler (some of talk, main.<lambda>): what visitors make the script call"]


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("from flask import Flask\napp = Flask(__name__)\n", "app.run()"),
        ("from fastapi import FastAPI\nweb = FastAPI()\n", "__import__('uvicorn').run(web)"),
    ],
)
def test_a_web_application_that_nobody_serves_is_served(source: str, entry: str, tmp_path: Path) -> None:
    made = completed(f"{source}generate('ready')\n@app.post('/ask')\ndef ask(text):\n    generate(text)\n", tmp_path)
    assert made.text.endswith(f"{entry}\n") and made.scenario.handlers == ["ask"]


def test_a_scenario_file_reads_back(tmp_path: Path) -> None:
    import tomllib

    scenario = Scenario(
        ["--a", 'quo"te'], ["x\n"], {"A": "b"}, {"p.jpg": "q"}, {"seconds": 3.5}, ["generate"], ["x > 1"],
        {"main.n": 1, "LIMIT": [1, 2]}, "main()", ["talk"], {"text": "hé", "flag": False, "more": {"a b": 1}},
    )  # fmt: skip
    assert parse_scenario(tomllib.loads(to_toml(scenario, ["a\nnote"])), "") == scenario
