"""The interpreter computes what Python would, and nothing that only running the script would tell."""

import ast
from pathlib import Path

import pytest

from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.repository import Repository


def value(source: str, repository: Repository | None = None, file: Path | None = None):
    interpreter = CliInterpreter(ast.parse(source), repository, file)
    return interpreter.value(ast.parse("x", mode="eval").body)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1 + 2 * 3 - 4 / 2",
        "x = 'a' + 'b' * 3",
        "x = [1, (2, 3), {'k': {4}}]",
        "x = {**{'a': 1}, 'b': 2}",
        "x = -5 // 2 % 3",
        "x = not (1 < 2 < 3) or 'y'",
        "x = 'yes' if 3 in [1, 3] else 'no'",
        "x = f'{1}-{\"a\"}'",
        "x = [i * 2 for i in range(5) if i != 3]",
        "x = dict(a=1, b=[2]).get('b')",
        "x = 'a,b'.split(',') + sorted(['d', 'c'])",
        "import os\nx = os.path.join('a', 'b')",
        "y = {}\ny['k'] = 3\nx = y",
        "x = 0\nfor i in [1, 2, 3]:\n    x = x + i",
        "def f(a, b=2, *, c=3): return [a, b, c]\nx = f(1, c=4)",
        "f = lambda n: n + 1\nx = f(1)",
        "a, (b, c) = 1, (2, 3)\nx = c",
        "x = 1\nif x == 1:\n    x = 'one'\nelse:\n    x = 'other'",
    ],
)
def test_values_equal_pythons(source: str) -> None:
    names: dict = {}
    exec(source, names)
    assert value(source) == names["x"]


@pytest.mark.parametrize(
    "source",
    ["import torch\nx = torch.device('cpu')", "x = open('f').read()", "x = input()", "x = undefined", "x = 1 / 0",
     "x = __import__('os').getpid()", "x = exec('y = 1')", "import subprocess\nx = subprocess.run(['ls'])"],
)  # fmt: skip
def test_what_only_running_tells_is_unknown(source: str) -> None:
    assert isinstance(value(source), Unknown)


def test_functions_of_the_repository_are_followed(tmp_path: Path) -> None:
    (tmp_path / "defaults.py").write_text("SIZE = 4\ndef defaults(n): return {'size': SIZE * n}\n")
    script = tmp_path / "script.py"
    script.write_text("from defaults import defaults\nx = defaults(2)\n")
    assert value(script.read_text(), Repository(tmp_path), script) == {"size": 8}


def test_parsers_are_real_ones() -> None:
    source = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=2 + 1)\np.parse_args()"
    )
    (parser,) = CliInterpreter(ast.parse(source), None, None).parsers
    assert parser.parsed and vars(parser.parse_known_args([])[0]) == {"n": 3}
