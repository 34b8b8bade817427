"""Complete a scenario: values for everything that a script requires and nobody gave, each with its reason."""

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.cli_options import CommandLine, Option
from genwright.inspect.analysis.scenario import Scenario, literal
from genwright.inspect.analysis.source_files import read_data
from genwright.inspect.analysis.syntax import Function
from genwright.inspect.analysis.value_choices import Choice, Wanted, choose, is_output, medium_of
from genwright.inspect.media.samples import MEDIUM_OF

if TYPE_CHECKING:
    from genwright.inspect.analysis.analyse import Analysis

_ROUNDS = 8  # a chosen command has required options of its own
_YES_OR_NO = re.compile(r"[\[(]y/n[\])]", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"[<>{}$*]|\.\.\.|path/to|^/path|your", re.IGNORECASE)


def complete(analysis: "Analysis", scenario: Scenario, ask: bool = False) -> tuple[Scenario, list[Choice]]:
    """The scenario with what it lacks, and every value that was chosen; with `ask`, nothing is chosen."""
    chosen: list[Choice] = []
    completed = _handlers(analysis, scenario, ask, chosen)
    if ask:
        return completed, chosen
    completed = replace(completed, argv=_argv(analysis, scenario.argv, chosen))
    if not scenario.answers:
        completed = replace(completed, answers=_answers(analysis, chosen))
    unattended = analysis.unattended
    if not unattended.has_entry and not unattended.entry and not scenario.entry:
        completed = replace(completed, entry=_entry(analysis, chosen))
    return completed, chosen


def _answers(analysis: "Analysis", chosen: list[Choice]) -> list[str]:
    """Yes to each question of a script that asks only for yes or no; of others nothing tells the order."""
    asked = [b for b in analysis.unattended.blockers if b.kind == "input"]
    if not all(_YES_OR_NO.search(b.text) for b in asked):
        return []
    chosen += [Choice("answers", "y", f"line {b.line} asks for yes or no") for b in asked]
    return ["y"] * len(asked)


def _argv(analysis: "Analysis", given: list[str], chosen: list[Choice]) -> list[str]:
    command_line = analysis.unattended.command_line
    argv = list(given)
    examples: list[dict[str, Any]] | None = None
    for _ in range(_ROUNDS):
        missing = command_line.missing(argv)
        if not missing:
            break
        if examples is None:
            examples = [
                command_line.given(words) for words in readme_examples(analysis.repository.root, analysis.script)
            ]
        positions: list[str] = []
        flags: list[str] = []
        for option in missing:
            values, reason = _option_values(analysis, option, examples)
            chosen.append(Choice(option.label, shlex.join(values), reason))
            if command_line.kind == "hydra":
                flags += [f"{option.name}={value}" for value in values]
            elif option.flags and not option.takes_value:
                flags.append(option.flags[-1])
            elif option.flags:
                flags += [option.flags[-1], *values]
            else:
                positions += values
        # Options of the whole command line stand in front of a command.
        commands = [p for p in positions if _is_command(command_line, p)]
        argv += [*(p for p in positions if p not in commands), *flags, *commands]
    return argv


def _is_command(command_line: CommandLine, word: str) -> bool:
    return any(o.command.rpartition(" ")[2] == word for o in command_line.options if o.command)


def _option_values(analysis: "Analysis", option: Option, examples: list[dict[str, Any]]) -> tuple[list[str], str]:
    if option.choices and option.is_command:
        named = {getattr(n, "name", ""): n for n in analysis.location.flow.nodes if isinstance(n, Function)}
        for command in option.choices:
            function = named.get(str(command).replace("-", "_"))
            if function is not None and _crosses(analysis, function):
                return [str(command)], "the command that calls the model"
        return [str(option.choices[0])], "the first of its choices"
    for example in examples:
        given = example.get(option.name)
        values: list[Any] = given if isinstance(given, list) else [given]
        if values and all(_is_usable(v, option, analysis.repository.root) for v in values):
            return values, "from an example of the README"
    wanted = Wanted(option.name, option.type, option.help, option.choices, about=medium_of(analysis.source))
    value, reason = choose(wanted, analysis.repository.root)
    return [str(value)] * option.count, reason


def _is_usable(value: Any, option: Option, root: Path) -> bool:
    """Whether an example's value is no placeholder, nor a picture, sound, video or PDF to read that is not there."""
    if not isinstance(value, str) or not value or _PLACEHOLDER.search(value):
        return False
    if Path(value).suffix.lower() in MEDIUM_OF and not (is_output(option.name) or (root / value).exists()):
        return False
    return not option.choices or value in map(str, option.choices)


def readme_examples(root: Path, script: Path) -> list[list[str]]:
    """What follows a script's name in the command lines of the repository's README files."""
    found: list[list[str]] = []
    folders = dict.fromkeys((script.resolve().parent, root))
    for readme in [f / name for f in folders for name in ("README.md", "README.rst", "readme.md", "README")]:
        if not readme.is_file():
            continue
        try:
            text = re.sub(r"\\[ \t]*\r?\n", " ", read_data(readme, "README"))
        except UserError:
            continue
        for line in text.splitlines():
            match = re.search(rf"(?:^|[\s/`]){re.escape(script.name)}(?=\s)(.*)", line)
            try:
                words = shlex.split(match.group(1).rstrip("` ")) if match else []
            except ValueError:
                words = []
            found += [words] if words else []
    return found


def _handlers(analysis: "Analysis", scenario: Scenario, ask: bool, chosen: list[Choice]) -> Scenario:
    """The handlers that visitors make the script call: those given, else those that cross the model."""
    known = analysis.unattended.handlers
    if not scenario.handlers:
        if known and not (ask and len(known) > 1):
            chosen += [] if ask else [Choice("ui.handler", ", ".join(known), "what crosses the model")]
            return replace(scenario, handlers=known)
        return scenario
    name = analysis.script.name
    if not any(b.kind in ("ui", "server") for b in analysis.unattended.blockers):
        raise UserError(f"[ui] handler: {name} starts no user interface and no server.")
    functions = {s.name: n for n, s in analysis.location.flow.scopes.opened_by.items() if isinstance(n, Function)}
    given: list[str] = []
    for handler in scenario.handlers:
        meant = [n for full, n in functions.items() if full == handler or full.endswith(f".{handler}")]
        if not meant:
            raise UserError(f"[ui] handler: {name} has no {handler!r}; it has {', '.join(functions)}.")
        given += [p.name for n in meant for p in Signature.of(n).parameters]
    unknown = sorted(set(scenario.handler_arguments) - set(given))
    if unknown:
        handlers = ", ".join(scenario.handlers)
        raise UserError(f"[ui] {handlers} has no parameter {unknown[0]!r}; it has {', '.join(given)}.")
    return scenario


def _entry(analysis: "Analysis", chosen: list[Choice]) -> str:
    """The call of the function or method that crosses the model and needs the fewest values."""
    commands: list[str] = []
    found: list[tuple[bool, bool, int, int, str, list[Choice]]] = []
    for node in analysis.tree.body:
        if isinstance(node, Function) and _crosses(analysis, node):
            if analysis.unattended.command_line.kind == "click" and "command" in _decorators(node):
                commands.append(f"{node.name}()")
                continue
            text, values = _call(analysis, node, node.name)
            # One that only makes the model's object is the last choice.
            found.append((not _crosses(analysis, node, True), False, len(values), node.lineno, text, values))
        elif isinstance(node, ast.ClassDef):
            found += [(False, True, len(values), line, text, values) for line, text, values in _methods(analysis, node)]
    if commands:
        chosen.append(Choice("entry", commands[0], "the command that calls the model"))
        return commands[0]
    if not found:
        return ""
    *_, text, values = min(found, key=lambda f: f[:5])
    chosen += [Choice("entry", text, "it calls the model"), *values]
    return text


def _methods(analysis: "Analysis", node: ast.ClassDef) -> list[tuple[int, str, list[Choice]]]:
    methods = [m for m in node.body if isinstance(m, Function)]
    maker = next((m for m in methods if m.name == "__init__"), None)
    made, for_maker = _call(analysis, maker, node.name, bound=True) if maker else (f"{node.name}()", [])
    found: list[tuple[int, str, list[Choice]]] = []
    alone: list[str] = []
    for method in methods:
        if method.name.startswith("__") or method.decorator_list or not _crosses(analysis, method):
            continue
        text, values = _call(analysis, method, f"{made}.{method.name}", bound=True)
        found.append((method.lineno, text, [*for_maker, *values]))
        alone += [] if values or isinstance(method, ast.AsyncFunctionDef) else [method.name]
    if len(alone) > 1:
        # One may prepare what the next one needs.
        names = ", ".join(f"made.{name}" for name in alone)
        return [(node.lineno, f"[method() for made in [{made}] for method in ({names})]", for_maker)]
    if not found and maker is not None and _crosses(analysis, maker):
        found.append((maker.lineno, made, for_maker))
    return found


def _call(analysis: "Analysis", function: Function, name: str, bound: bool = False) -> tuple[str, list[Choice]]:
    arguments: list[str] = []
    values: list[Choice] = []
    parametrized = _parametrized(function)
    for parameter in Signature.of(function, bound).parameters:
        if not parameter.required:
            continue
        text, reason = parametrized.get(parameter.name, ""), "the first of the test's parameters"
        if not text:
            value, reason = choose(Wanted(parameter.name, parameter.annotation or ""), analysis.repository.root)
            text = _as_annotated(parameter.annotation or "", value)
        arguments.append(f"{parameter.name}={text}")
        values.append(Choice(f"{function.name}.{parameter.name}", text, reason))
    call = f"{name}({', '.join(arguments)})"
    is_async = isinstance(function, ast.AsyncFunctionDef)
    return (f"__import__('asyncio').run({call})" if is_async else call), values


def _as_annotated(annotation: str, value: Any) -> str:
    text = literal(value)
    lowered = annotation.lower()
    if lowered.startswith(("list", "sequence", "typing.list", "tuple")):
        return f"[{text}]"
    if lowered.startswith(("dict", "mapping", "typing.dict")):
        return "{}"
    return text


def _parametrized(function: Function) -> dict[str, str]:
    """What pytest would give a test's parameters first, as expressions."""
    found: dict[str, str] = {}
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            if len(decorator.args) < 2 or not isinstance(decorator.args[0], ast.Constant):
                continue
            names = [n.strip() for n in str(decorator.args[0].value).split(",")]
            first = f"next(iter({ast.unparse(decorator.args[1])}))"
            found |= {n: first if len(names) == 1 else f"{first}[{i}]" for i, n in enumerate(names)}
    return found


def _decorators(function: Function) -> set[str]:
    calls = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return {ast.unparse(c).rpartition(".")[2] for c in calls}


def _crosses(analysis: "Analysis", function: ast.AST, calls_only: bool = False) -> bool:
    return function in (analysis.location.calling if calls_only else analysis.location.crossing)
