"""Command lines made by absl, tyro, jsonargparse, docopt and hydra, read from calls, signatures and usage texts."""

import ast
import re
from dataclasses import replace
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.bind import Parameter, Signature
from genwright.inspect.analysis.cli_frameworks import refers
from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.cli_options import CommandLine, Option
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.source_files import read_data
from genwright.inspect.analysis.syntax import Function

_ABSL = {"string": "str", "integer": "int", "float": "float", "bool": "bool", "boolean": "bool", "enum": "str"}


def read_absl(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    options: dict[str, Option] = {}
    marked: list[str] = []
    line = 0
    for call in calls:
        names = [v.dotted for v in flow.values(call.func) if isinstance(v, Ref) and v.dotted.startswith("absl.flags.")]
        word = names[0].rpartition(".")[2] if names else ""
        values = [evaluator.value(a) for a in call.args]
        keywords = {k.arg: evaluator.value(k.value) for k in call.keywords if k.arg}
        if word.startswith("mark_flag") and values:
            marked += values[0] if isinstance(values[0], list | tuple) else [values[0]]
        if not word.startswith("DEFINE_") or not values or not isinstance(values[0], str):
            continue
        line = line or call.lineno
        kind = word.removeprefix("DEFINE_")
        at_help = 3 if kind == "enum" else 2
        held = keywords.get("enum_values", values[2] if kind == "enum" and len(values) > 2 else ())
        options[values[0]] = Option(
            values[0],
            (f"--{values[0]}",),
            _ABSL.get(kind, "str"),
            keywords.get("default", values[1] if len(values) > 1 else None),
            keywords.get("required") is True,
            tuple(held) if isinstance(held, list | tuple) else (),
            str(keywords.get("help", values[at_help] if len(values) > at_help else "")),
            kind not in ("bool", "boolean"),
        )
    found = tuple(replace(o, required=o.required or o.name in marked) for o in options.values())
    return CommandLine("absl", found, line) if found else CommandLine()


def read_tyro(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    """`tyro.cli` of a function or dataclass: every parameter is a flag."""
    return _of_callable("tyro", ("tyro.cli",), False, flow, evaluator, calls)


def read_jsonargparse(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    """`CLI` of a function: what has no default stands by position."""
    names = ("jsonargparse.CLI", "jsonargparse.auto_cli")
    return _of_callable("jsonargparse", names, True, flow, evaluator, calls)


def _of_callable(
    kind: str, names: tuple[str, ...], positional: bool, flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]
) -> CommandLine:
    launches = [c for c in calls if c.args and any(refers(flow, c.func, name) for name in names)]
    for launch in launches[:1]:
        for node in flow.definitions(launch.args[0]):
            options = []
            for parameter in _parameters(node):
                flag = parameter.name if positional else parameter.name.replace("_", "-")
                flags = () if positional and parameter.required else (f"--{flag}",)
                default = evaluator.value(ast.parse(parameter.default, mode="eval").body) if parameter.default else None
                annotation = parameter.annotation or "str"
                options.append(Option(parameter.name, flags, annotation, default, parameter.required))
            return CommandLine(kind, tuple(options), launch.lineno)
    return CommandLine()


def _parameters(node: ast.AST) -> list[Parameter]:
    if isinstance(node, Function):
        return list(Signature.of(node).parameters)
    fields = [s for s in getattr(node, "body", []) if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    return [
        Parameter(ast.unparse(f.target), default=ast.unparse(f.value) if f.value else None,
                  annotation=ast.unparse(f.annotation))
        for f in fields
    ]  # fmt: skip


def read_docopt(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    """The first pattern of the usage; what is in square brackets is optional, of alternatives the first counts."""
    launches = [c for c in calls if refers(flow, c.func, "docopt.docopt")]
    if not launches:
        return CommandLine()
    module = next((n for n in flow.nodes if isinstance(n, ast.Module)), None)
    text = ast.get_docstring(module) if module is not None else ""
    if launches[0].args and isinstance(given := evaluator.value(launches[0].args[0]), str):
        text = given
    match = re.search(r"usage:\s*\S+[ \t]*([^\n]*)", text or "", re.IGNORECASE)
    pattern = re.sub(r"\[[^\[\]]*\]", " ", match.group(1)) if match else ""
    pattern = re.sub(r"\(([^()|]*)(?:\|[^()]*)?\)", r"\1", pattern)
    options: list[Option] = []
    for word in pattern.replace("...", " ").split():
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            options.append(Option(flag.lstrip("-"), (flag,), required=True, takes_value=bool(value)))
        elif word.startswith("<") or word.isupper():
            options.append(Option(word.strip("<>").lower(), required=True))
        else:
            options.append(Option(word, required=True, choices=(word,)))
    return CommandLine("docopt", tuple(options), launches[0].lineno)


def read_hydra(flow: Flow, evaluator: CliInterpreter, file: Path | None) -> CommandLine:
    """`hydra.main`: the values that its configuration leaves open as `???`, given as KEY=VALUE."""
    for node in flow.nodes:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if not isinstance(decorator, ast.Call) or not refers(flow, decorator.func, "hydra.main"):
                continue
            given = {k.arg: evaluator.value(k.value) for k in decorator.keywords if k.arg}
            folder, name = given.get("config_path"), given.get("config_name")
            options: list[Option] = []
            if file is not None and isinstance(folder, str) and isinstance(name, str):
                config = file.parent / folder / f"{name.removesuffix('.yaml')}.yaml"
                options = [Option(key, (key,), required=True) for key in _open_keys(config)]
            return CommandLine("hydra", tuple(options), decorator.lineno)
    return CommandLine()


def _open_keys(config: Path) -> list[str]:
    """The dotted keys of a YAML file whose value is `???`."""
    try:
        lines = read_data(config, "configuration").splitlines()
    except UserError:
        return []
    found: list[str] = []
    above: list[tuple[int, str]] = []
    for line in lines:
        match = re.match(r"( *)([\w-]+):\s*(.*)", line)
        if match is None:
            continue
        indent, key, value = len(match[1]), match[2], match[3].split("#")[0].strip().strip("'\"")
        above = [*(a for a in above if a[0] < indent), (indent, key)]
        if value == "???":
            found.append(".".join(name for _, name in above))
    return found
