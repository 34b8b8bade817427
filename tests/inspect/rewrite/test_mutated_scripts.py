"""Random mutations of the fixtures: each is rewritten, or refused in one sentence."""

import ast
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_cases import CASES, PROJECT, Case

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import analyse
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.rewrite.rewrite import rewrite

COUNT, BATCHES = 500, 10
Mutation = Callable[[random.Random, str], str]
TOKENS = [
    "(",
    ")",
    "*",
    "**",
    "=",
    ",",
    ":",
    "lambda x: ",
    "await ",
    "yield ",
    "generate",
    "model",
    "'",
    '"""',
    "\\",
    "é",
    "\t",
]


def drop_line(random: random.Random, source: str) -> str:
    lines = source.splitlines(keepends=True)
    del lines[random.randrange(len(lines))]
    return "".join(lines)


def repeat_line(random: random.Random, source: str) -> str:
    lines = source.splitlines(keepends=True)
    lines.insert(random.randrange(len(lines)), random.choice(lines))
    return "".join(lines)


def insert_token(random: random.Random, source: str) -> str:
    at = random.randrange(len(source))
    return source[:at] + random.choice(TOKENS) + source[at:]


def join_lines(random: random.Random, source: str) -> str:
    """Statements on one line, and bodies behind their colon."""
    lines = source.splitlines(keepends=True)
    at = random.randrange(len(lines) - 1)
    glue = " " if lines[at].rstrip().endswith(":") else "; "
    lines[at : at + 2] = [lines[at].rstrip() + glue + lines[at + 1].lstrip()]
    return "".join(lines)


class _Change(ast.NodeTransformer):
    """Changes one expression, chosen by number."""

    def __init__(self, random: random.Random, count: int) -> None:
        self.random, self.at = random, random.randrange(max(count, 1))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        self.at -= 1
        if self.at != -1:
            return node
        other = ast.Call(ast.Name("generate", ast.Load()), [ast.Constant("nested")], [])
        match self.random.randrange(8):
            case 0:
                return ast.Call(
                    node.func, [*node.args, ast.Starred(ast.List([], ast.Load()), ast.Load())], node.keywords
                )
            case 1:
                return ast.Call(node.func, node.args, [*node.keywords, ast.keyword(None, ast.Dict([], []))])
            case 2:
                return ast.Call(node.func, list(reversed(node.args)), list(reversed(node.keywords)))
            case 3:
                return ast.Call(node.func, [*node.args, other], node.keywords)
            case 4:
                return ast.IfExp(ast.Constant(True), node, ast.Constant(None))
            case 5:
                return ast.Call(ast.Lambda(_NO_ARGUMENTS, node), [], [])
            case 6:
                return ast.JoinedStr([ast.FormattedValue(node, -1, None)])
            case _:
                return ast.Call(node, [], [])


_NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])


def change_call(random: random.Random, source: str) -> str:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    calls = sum(isinstance(n, ast.Call) for n in ast.walk(tree))
    return ast.unparse(ast.fix_missing_locations(_Change(random, calls).visit(tree)))


def rename(random: random.Random, source: str) -> str:
    names = ["generate", "model", "main", "Model", "prompt", "print", "exe", "sys", "input"]
    return source.replace(random.choice(names), random.choice(names))


MUTATIONS: list[Mutation] = [drop_line, repeat_line, insert_token, join_lines, change_call, change_call, rename]


def mutate(seed: int) -> tuple[Case, str]:
    chance = random.Random(seed)
    cases = [c for c in CASES if c.script.suffix == ".py"]  # a mutated notebook is no JSON
    case = cases[seed % len(cases)]
    source = case.script.read_text()
    for _ in range(chance.randrange(1, 4)):
        source = chance.choice(MUTATIONS)(chance, source)
    return case, source


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_mutation_is_rewritten_or_refused(batch: int, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")  # what the mutants' own code deserves
    for seed in range(batch, COUNT, BATCHES):
        case, source = mutate(seed)
        script = tmp_path / case.script.relative_to(PROJECT)
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(source)
        try:
            compile(source, "mutant", "exec")
            runnable = True
        except (SyntaxError, ValueError):
            runnable = False
        try:
            made = rewrite(script, case.manifest, case.scenario, Repository(tmp_path))
        except UserError as told:
            sentence = str(told)
            assert "\n" not in sentence and len(sentence) < 600, (seed, sentence)
            # Python that runs is refused only where the scenario no longer fits it, never because a rewrite failed
            # its verification.
            assert not runnable or sentence.startswith("["), (seed, sentence)
            continue
        assert runnable, seed
        compile(made.text, "rewritten", "exec")
        again = analyse(made.text, script, case.manifest, Repository(tmp_path)).location.sites
        left = {s.interface.name for s in again if s.kind == "function"}
        routed = {s.interface.name for s in made.analysis.location.sites if s.kind == "function"}
        assert not left & routed, (seed, "a routed function is still called directly")
