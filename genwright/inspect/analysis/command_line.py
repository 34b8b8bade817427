"""What a script takes on its command line, whichever library reads it, with real defaults."""

import argparse
import ast
import itertools
from pathlib import Path

from genwright.inspect.analysis.cli_frameworks import read_click, read_fire, read_typer, refers
from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.cli_libraries import (
    read_absl,
    read_docopt,
    read_hydra,
    read_jsonargparse,
    read_tyro,
)
from genwright.inspect.analysis.cli_options import CommandLine, Option
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.interpreter_expressions import Function
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.repository import Repository

_PARSERS = ("argparse", "jsonargparse")


def read_command_line(tree: ast.Module, flow: Flow, repository: Repository | None, file: Path | None) -> CommandLine:
    """Find which library reads the command line, and every option of it."""
    calls = [n for n in flow.nodes if isinstance(n, ast.Call)]
    evaluator = CliInterpreter(tree, repository, file)
    builders = [c for c in calls if any(refers(flow, c.func, f"{m}.ArgumentParser") for m in _PARSERS)]
    if builders:
        functions = [n for n in flow.nodes if isinstance(n, ast.FunctionDef)]
        evaluator.call_remaining([f for f in functions if any(flow.scopes.inside(b, f) for b in builders)])
        parsers = [p for p in evaluator.parsers if p.parsed] or evaluator.parsers
        options = _of_parser(parsers[0]) if parsers else ()
        return CommandLine("argparse", options, builders[0].lineno, parsers[0] if parsers else None)
    for read in (read_click, read_typer, read_fire, read_absl, read_tyro, read_jsonargparse, read_docopt):
        found = read(flow, evaluator, calls)
        if found.kind:
            return found
    hydra = read_hydra(flow, evaluator, file)
    return hydra if hydra.kind else _argv(flow)


def _of_parser(parser: argparse.ArgumentParser, command: str = "") -> tuple[Option, ...]:
    options: list[Option] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            name = action.dest if action.dest != argparse.SUPPRESS else "command"
            options.append(Option.of_commands(action.choices, name=name, required=action.required, command=command))
            for name, inner in action.choices.items():
                options += _of_parser(inner, f"{command} {name}".strip())
        elif not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            options.append(_of_action(parser, action, command))
    return tuple(options)


def _of_action(parser: argparse.ArgumentParser, action: argparse.Action, command: str) -> Option:
    kind = action.type
    if isinstance(kind, Function):
        name = getattr(kind.node, "name", "str")
    else:
        name = kind.text if isinstance(kind, Unknown) else getattr(kind, "__name__", "str")
    try:
        choices = tuple(itertools.islice(action.choices or (), 60))
    except TypeError:
        choices = ()
    help_text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    return Option(
        action.dest,
        tuple(action.option_strings),
        {"PurePath": "Path"}.get(name, name),
        parser.get_default(action.dest),
        action.required,
        choices,
        help_text,
        action.nargs != 0,
        command,
        action.nargs if isinstance(action.nargs, int) and action.nargs > 0 else 1,
    )


def _argv(flow: Flow) -> CommandLine:
    """`sys.argv[1]` must be there unless the script looks at how many there are."""
    indices: dict[int, int] = {}
    measured = False
    for node in flow.nodes:
        if isinstance(node, ast.Subscript) and refers(flow, node.value, "sys.argv"):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(index, int) and index > 0:
                indices.setdefault(index, node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
            measured |= refers(flow, node.args[0], "sys.argv")
    if not indices:
        return CommandLine()
    options = [
        Option(f"argument_{i}", required=not measured, help=f"sys.argv[{i}], read in line {indices.get(i, 0)}")
        for i in range(1, max(indices) + 1)
    ]
    return CommandLine("sys.argv", tuple(options), min(indices.values()))
