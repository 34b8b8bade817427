"""What would stop a run is found, and a rewritten script does not stop."""

import ast
from pathlib import Path

import pytest
from fixture_cases import PROJECT, run

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

MANIFEST = load_manifest(PROJECT / "tinymodel.toml")

ATTENDED = """
import getpass, os
from getpass import getpass as ask
import matplotlib
import matplotlib.pyplot as plt
from tinymodel import generate
print(os.environ["MPLBACKEND"], os.environ["COLOUR"])
breakpoint()
secret = getpass.getpass("Password: ") + ask()
name = input("Name: ")
generate(f"{secret} {name}", 1)
plt.show()
matplotlib.use("TkAgg")
matplotlib.use("Agg")
plt.switch_backend("module://drawn")
"""


def rewritten(source: str, folder: Path, scenario: Scenario) -> Rewrite:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(source)
    return rewrite(script, MANIFEST, scenario, Repository(folder))


def test_nothing_waits_for_a_person(tmp_path: Path) -> None:
    scenario = Scenario(answers=["pass", "word", "Ann"], environment={"COLOUR": "red"})
    made = rewritten(ATTENDED, tmp_path / "original", scenario)
    kinds = [(b.kind, b.line) for b in made.analysis.unattended.blockers]
    assert kinds == [("debugger", 8), ("input", 9), ("input", 9), ("input", 10), ("window", 12), ("window", 13)]
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("def use(name): ...")
    pyplot = "def get_fignums(): return []\ndef close(_): ...\ndef switch_backend(name): ..."
    (tmp_path / "matplotlib" / "pyplot.py").write_text(pyplot)
    (tmp_path / "new.py").write_text(made.text)
    done = run([str(tmp_path / "new.py")], tmp_path / "run")
    assert done.code == 0, done.errors
    assert done.output.startswith("Agg red\n") and done.seen[0][1]["prompt"] == "password Ann"
    assert [r.result for r in done.records if r.event == "answer"] == ["pass", "word", "Ann"]


@pytest.mark.parametrize(
    ("source", "has_entry", "entry"),
    [
        ("def main():\n    generate('x')\n", False, "main()"),
        ("def main():\n    generate('x')\nmain()\n", True, ""),
        ("def start():\n    generate('x')\nif __name__ == '__main__':\n    start()\n", True, ""),
        ("generate('x')\n", True, ""),
        ("def one():\n    generate('x')\ndef two():\n    generate('y')\n", False, ""),
        ("def needs(x):\n    generate(x)\n", False, ""),
        ("def inner():\n    generate('x')\ndef outer():\n    inner()\n", False, "outer()"),
        ("async def main():\n    generate('x')\n", False, "__import__('asyncio').run(main())"),
        ("import typer\napp = typer.Typer()\n@app.command()\ndef main():\n    generate('x')\napp()\n", True, ""),
        ("import fire\ndef main():\n    generate('x')\nfire.Fire(main)\n", True, ""),
        ("import warnings\nwarnings.filterwarnings('ignore')\ndef run():\n    generate('x')\n", False, "run()"),
        ("while True:\n    break\ndef f():\n    generate('x')\n", True, ""),
    ],
)
def test_how_a_script_starts(source: str, has_entry: bool, entry: str, tmp_path: Path) -> None:
    made = rewritten("from tinymodel import generate\n" + source, tmp_path, Scenario())
    unattended = made.analysis.unattended
    assert (unattended.has_entry, unattended.entry) == (has_entry, entry)
    assert made.text.endswith(f"{entry}\n")
    asked = [m for m in made.missing if m.startswith("entry")]
    assert bool(asked) == (not has_entry and not entry)
    named = rewritten("from tinymodel import generate\n" + source, tmp_path, Scenario(entry="print('started')"))
    assert named.text.endswith("print('started')\n") and not named.missing
    ast.parse(named.text)


def test_a_script_inside_a_package_of_its_own(tmp_path: Path) -> None:
    """`src/pkg/cli.py` imports from its package by dots; the package's name does not begin at the repository's root."""
    package = tmp_path / "src" / "pkg" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "names.py").write_text("NAME = 'Ann'\n")
    script = package / "cli.py"
    script.write_text(
        "from tinymodel import generate\nfrom ..names import NAME\ngenerate(NAME, 1)\nprint(__package__)\n"
    )
    made = rewrite(script, MANIFEST, Scenario(), Repository.around(script))
    (tmp_path / "new.py").write_text(made.text)
    done = run([str(tmp_path / "new.py")], tmp_path / "run")
    assert done.code == 0 and done.output == "pkg.inner\n", done.errors
    assert done.seen[0][1]["prompt"] == "Ann"
