"""Command lines of absl, tyro, jsonargparse, docopt and hydra: what they require, and an argv that gives it."""

from pathlib import Path

import pytest
from fixture_cases import PROJECT

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.value_choices import TEXT
from genwright.inspect.rewrite.rewrite import rewrite

ABSL = """
from absl import app, flags
flags.DEFINE_string("prompt", None, "What to say.", required=True)
flags.DEFINE_enum("mode", None, ["fast", "slow"], "How.")
flags.DEFINE_integer("steps", 3, "Steps.")
flags.mark_flag_as_required("mode")
def main(_):
    generate(flags.FLAGS.prompt, 1)
app.run(main)
"""
TYRO = """
import dataclasses, tyro
@dataclasses.dataclass
class Options:
    my_prompt: str
    steps: int
    rate: float = 0.5
options = tyro.cli(Options)
generate(options.my_prompt, options.steps)
"""
JSONARGPARSE = """
from jsonargparse import CLI
def main(prompt: str, steps: int, rate: float = 0.5):
    generate(prompt, steps)
CLI(main)
"""
PARSER = """
from jsonargparse import ArgumentParser
parser = ArgumentParser()
parser.add_argument("--prompt", required=True)
generate(parser.parse_args().prompt, 1)
"""
DOCOPT = '''"""Talk.

Usage:
  talk.py (say | sing) <prompt> --steps=<n> [--loud] [<more>]
  talk.py --version
"""
from docopt import docopt
from tinymodel import generate
arguments = docopt(__doc__)
generate(arguments["<prompt>"], 1)
'''
HYDRA = """
import hydra
@hydra.main(config_path="conf", config_name="base")
def main(config):
    generate(config.prompt, 1)
main()
"""


@pytest.mark.parametrize(
    ("source", "kind", "argv"),
    [
        (ABSL, "absl", ["--prompt", TEXT, "--mode", "fast"]),
        (TYRO, "tyro", ["--my-prompt", TEXT, "--steps", "1"]),
        (JSONARGPARSE, "jsonargparse", [TEXT, "1"]),
        (PARSER, "argparse", ["--prompt", TEXT]),
        (DOCOPT, "docopt", ["say", TEXT, "--steps", "1"]),
        (HYDRA, "hydra", [f"prompt={TEXT}", "model.device=cpu"]),
    ],
)
def test_what_is_required_is_found_and_chosen(source: str, kind: str, argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    config = "prompt: ???\nmodel:\n  name: tiny\n  device: ???  # where\nsteps: 3\n"
    (tmp_path / "conf" / "base.yaml").write_text(config)
    head = "" if source is DOCOPT else "from tinymodel import generate\n"
    (tmp_path / "script.py").write_text(head + source)
    manifest = load_manifest(PROJECT / "tinymodel.toml")
    made = rewrite(tmp_path / "script.py", manifest, Scenario(), Repository(tmp_path), ask=False)
    assert made.analysis.unattended.command_line.kind == kind
    assert made.scenario.argv == argv and not made.missing
    asked = rewrite(tmp_path / "script.py", manifest, Scenario(), Repository(tmp_path)).missing
    assert len(asked) == len(made.chosen)
