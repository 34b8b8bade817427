"""Whatever reads the keyboard gets the scenario's answers, and the run ends when they are used up."""

from pathlib import Path

import pytest
from fixture_cases import PROJECT, Run, run

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import rewrite

MANIFEST = load_manifest(PROJECT / "tinymodel.toml")
PROMPT_TOOLKIT = "class PromptSession:\n    def prompt(self, *a, **k):\n        raise SystemExit('asked')\n"


def unattended(source: str, folder: Path, answers: list[str]) -> Run:
    original = folder / "original"
    (original / "prompt_toolkit" / "shortcuts").mkdir(parents=True)
    (original / "prompt_toolkit" / "__init__.py").write_text("from .shortcuts.prompt import PromptSession\n")
    (original / "prompt_toolkit" / "shortcuts" / "__init__.py").touch()
    (original / "prompt_toolkit" / "shortcuts" / "prompt.py").write_text(PROMPT_TOOLKIT)
    (original / "helper.py").write_text("def ask():\n    return input('helper: ')\n")
    (original / "script.py").write_text(f"from tinymodel import generate\n{source}\n")
    made = rewrite(original / "script.py", MANIFEST, Scenario(answers=answers), Repository(original))
    (folder / "new.py").write_text(made.text)
    return run([str(folder / "new.py")], folder / "run")


READERS = {
    "input": "print([input('? '), input()])",
    "another module": "import helper\nprint([helper.ask(), helper.ask()])",
    "stdin": "import sys\nprint([line.strip() for line in sys.stdin])",
    "stdin's buffer": "import sys\nprint([line.decode().strip() for line in sys.stdin.buffer])",
    "stdin's lines": "import sys\nprint([sys.stdin.readline().strip(), sys.stdin.readline().strip()])",
    "fileinput": "import fileinput\nprint([line.strip() for line in fileinput.input()])",
    "open(0)": "print(open(0).read().split())",
    "open(0), binary": "print([w.decode() for w in open(0, 'rb').read().split()])",
    "getpass": "from getpass import getpass\nimport getpass as g\nprint([getpass('? '), g.getpass()])",
    "click": "import click\nprint([click.prompt('A'), 'ho' if click.prompt('B') == 'ho' else ''])",
    "click, hidden": "import click\nprint([click.prompt('A', hide_input=True), click.prompt('B')])",
    "rich": "from rich.prompt import Prompt\nprint([Prompt.ask('A'), Prompt.ask('B')])",
    "prompt_toolkit": "from prompt_toolkit import PromptSession as S\nprint([S().prompt('A'), S().prompt('B')])",
    "cmd": (
        "import cmd\nheard = []\nclass Shell(cmd.Cmd):\n    def default(self, line):\n"
        "        heard.append(line)\n        return len(heard) == 2\nShell().cmdloop()\nprint(heard)"
    ),
}


@pytest.mark.parametrize("source", READERS.values(), ids=READERS)
def test_answers_reach(source: str, tmp_path: Path) -> None:
    done = unattended(source, tmp_path, ["hi", "ho"])
    assert done.code == 0, done.errors
    assert done.output.splitlines()[-1].endswith("['hi', 'ho']")


def test_a_question_of_yes_and_no(tmp_path: Path) -> None:
    done = unattended("import click\nprint(click.confirm('Sure?'))\nprint(click.getchar())", tmp_path, ["y", "n"])
    assert done.code == 0 and done.output.splitlines()[-1] == "n" and "True" in done.output, done.errors


LOOPS = {
    "plain": "while True:\n    generate(input('> '), 1)",
    "end of file": "while True:\n    try:\n        generate(input('> '), 1)\n    except EOFError:\n        break",
    "caught": "while True:\n    try:\n        generate(input('> '), 1)\n    except Exception:\n        print('again')",
    "all caught": "while True:\n    try:\n        generate(input('> '), 1)\n    except:\n        print('again')",
    "polling": "import sys\nwhile True:\n    x = sys.stdin.readline().strip()\n    if x:\n        generate(x, 1)",
    "cmd": "import cmd\nclass Shell(cmd.Cmd):\n    def default(self, x):\n        generate(x, 1)\nShell().cmdloop()",
}


@pytest.mark.parametrize("source", LOOPS.values(), ids=LOOPS)
def test_the_run_ends_with_the_answers(source: str, tmp_path: Path) -> None:
    done = unattended(source, tmp_path, ["hi"])
    assert done.code == 0 and "Traceback" not in done.errors, done.errors
    assert done.seen[0][1]["prompt"] == "hi"


def test_a_program_that_the_script_starts_does_not_wait(tmp_path: Path) -> None:
    child = "import sys; sys.exit(len(sys.stdin.read()))"
    source = f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    assert unattended(source, tmp_path, ["hi"]).output == "0\n"
