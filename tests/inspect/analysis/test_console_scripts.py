"""A script that only defines a command starts as its package's metadata says."""

from pathlib import Path

import pytest

from genwright.inspect.analysis.console_scripts import console_command
from genwright.inspect.analysis.locate import parse
from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.rewrite.rewrite import rewrite

SCRIPT = """import click
from talker.model import generate

@click.group()
def cli(): ...

@cli.command()
@click.argument("text")
def chat(text):
    print(generate(text))

plugins.load(cli)
"""
PYPROJECT = '[project.scripts]\ntalk = "talker.main:cli"\nother = "talker.other:cli"\n'


def talker(folder: Path, source: str, metadata: dict[str, str]) -> tuple[Repository, Path]:
    script = folder / "src" / "talker" / "main.py"
    script.parent.mkdir(parents=True)
    (script.parent / "__init__.py").touch()
    (script.parent / "model.py").write_text("def generate(text): return text\n")
    script.write_text(source)
    for name, text in metadata.items():
        (folder / name).write_text(text)
    return Repository(folder), script


@pytest.mark.parametrize(
    "metadata",
    [
        {"pyproject.toml": PYPROJECT},
        {"setup.cfg": "[options.entry_points]\nconsole_scripts =\n    talk = talker.main:cli\n"},
        {"setup.py": "setup(entry_points={'console_scripts': ['talk=talker.main:cli']})\n"},
        {"pyproject.toml": "\0", "setup.py": "setup(entry_points={'console_scripts': ['talk=talker.main:cli']})\n"},
    ],
)
def test_the_command_that_the_metadata_names(metadata: dict[str, str], tmp_path: Path) -> None:
    repository, script = talker(tmp_path, SCRIPT, metadata)
    assert console_command(repository, script, parse(SCRIPT, "main.py")) == "cli()"
    entry = {"name": "generate", "module": "talker.model", "signature": "(text)"}
    made = rewrite(script, parse_manifest({"project": "talker", "interface": [entry]}, "test"), ask=False)
    assert made.text.endswith("plugins.load(cli)\ncli()\n") and "'chat', 'A small cat" in made.text


@pytest.mark.parametrize(
    ("source", "metadata"),
    [
        (SCRIPT + "if __name__ == '__main__':\n    cli()\n", PYPROJECT),
        (SCRIPT + "cli()\n", PYPROJECT),
        (SCRIPT, PYPROJECT.replace("talker.main:cli", "talker.main:start")),
        (SCRIPT, PYPROJECT.replace("talker.main:cli", "main_talker.main:cli")),
        (SCRIPT, ""),
    ],
)
def test_no_command(source: str, metadata: str, tmp_path: Path) -> None:
    repository, script = talker(tmp_path, source, {"pyproject.toml": metadata})
    assert console_command(repository, script, parse(source, "main.py")) == ""
