"""What a script takes on its command line, from argparse, click, typer, fire or `sys.argv`, with real defaults."""

import argparse
import ast
import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genwright.inspect.bind import Signature
from genwright.inspect.evaluate import Evaluator, Function, Parser, Unknown
from genwright.inspect.flow import Flow, Local, Made, Member, Ref
from genwright.inspect.repository import Repository


@dataclass(frozen=True)
class Option:
    """One value of the command line; positional ones have no flags, `default` is None where there is none."""

    name: str
    flags: tuple[str, ...] = ()
    type: str = "str"
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()
    help: str = ""
    takes_value: bool = True
    command: str = ""

    @property
    def label(self) -> str:
        return f"{self.command} {self.flags[-1] if self.flags else self.name.upper()}".strip()

    def describe(self) -> str:
        kind = f"one of {', '.join(map(str, self.choices))}" if self.choices else self.type
        return f"{self.label} ({kind})" + (f": {self.help}" if self.help else "")


@dataclass(frozen=True)
class CommandLine:
    """The options of a script and the library that reads them; `parser` is a real one when that is argparse."""

    kind: str = ""
    options: tuple[Option, ...] = ()
    line: int = 0
    parser: Parser | None = field(default=None, compare=False)

    def missing(self, argv: list[str]) -> list[Option]:
        """The required options that an argv does not give."""
        required = [o for o in self.options if o.required]
        if self.parser is not None:
            given = _given(self.parser, argv)
            return [o for o in required if o.name not in given and (not o.command or o.command in argv)]
        commands = {o.command for o in self.options if o.command}
        chosen = next((a for a in argv if a in commands), "")
        rest = argv[argv.index(chosen) + 1 :] if chosen else argv
        mine = [o for o in self.options if o.command in ("", chosen)]
        flags = {flag: o for o in mine for flag in o.flags}
        given, positional = set(), 0
        tokens = iter(rest)
        for token in tokens:
            option = flags.get(token.partition("=")[0])
            if option is None:
                positional += not token.startswith("-")
            else:
                given.add(option.name)
                if option.takes_value and "=" not in token:
                    next(tokens, None)
        # fire fills parameters by position too; click's arguments have no flags.
        open_positions = [o for o in mine if o.name not in given and (not o.flags or self.kind == "fire")]
        given |= {o.name for o in open_positions[:positional]}
        return [o for o in required if o in mine and o.name not in given]


def read_command_line(tree: ast.Module, flow: Flow, repository: Repository | None, file: Path | None) -> CommandLine:
    """Find which library reads the command line, and every option of it."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n in flow.scopes.of_node]
    evaluator = Evaluator(tree, repository, file)
    builders = [c for c in calls if _is(flow, c, "argparse.ArgumentParser")]
    if builders:
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        evaluator.call_remaining([f for f in functions if any(b in ast.walk(f) for b in builders)])
        parsers = [p for p in evaluator.parsers if p.parsed] or evaluator.parsers
        options = _of_parser(parsers[0]) if parsers else ()
        return CommandLine("argparse", options, builders[0].lineno, parsers[0] if parsers else None)
    for read in (_click, _typer, _fire):
        found = read(tree, flow, evaluator, calls)
        if found.kind:
            return found
    return _argv(tree, flow)


def _given(parser: Parser, argv: list[str]) -> set[str]:
    """The options that an argv gives, as argparse itself reads it once nothing is required and nothing has a default."""
    parser = copy.deepcopy(parser)
    pending: list[argparse.ArgumentParser] = [parser]
    while pending:
        current = pending.pop()
        current._defaults.clear()
        for action in current._actions:
            action.required, action.default = False, argparse.SUPPRESS
            action.type = None
            action.choices = action.choices if isinstance(action, argparse._SubParsersAction) else None
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
            elif not action.option_strings and action.nargs is None:
                action.nargs = "?"
            elif not action.option_strings and action.nargs == "+":
                action.nargs = "*"
    try:
        return set(vars(parser.parse_known_args(argv)[0]))
    except (ValueError, argparse.ArgumentError, SystemExit):
        return set()


def _of_parser(parser: argparse.ArgumentParser, command: str = "") -> tuple[Option, ...]:
    options: list[Option] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options.append(
                Option(action.dest if action.dest != argparse.SUPPRESS else "command", required=action.required,
                       choices=tuple(action.choices), help="which command to run", command=command)
            )  # fmt: skip
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
        choices = tuple(action.choices or ())[:60]
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
    )


def _click(tree: ast.Module, flow: Flow, evaluator: Evaluator, calls: list[ast.Call]) -> CommandLine:
    commands: list[tuple[str, list[Option], int, bool]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        options: list[Option] = []
        command, group, own_name = False, False, node.name.replace("_", "-")
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
            names = {v.dotted for v in flow.values(call.func) if isinstance(v, Ref)}
            if names & {"click.option", "click.argument"}:
                options.append(_click_option(call, "click.argument" in names, evaluator))
            elif "click.group" in names:
                group = True
            elif "click.command" in names or (
                isinstance(call.func, ast.Attribute) and call.func.attr == "command" and _is_group(flow, call.func.value)
            ):
                command = True
                if call.args and isinstance(call.args[0], ast.Constant):
                    own_name = str(call.args[0].value)
        if command or group:
            commands.append(("" if group else own_name, options, node.lineno, group))
    if not commands:
        return CommandLine()
    several = any(group for *_, group in commands)
    found = [replace(o, command=name if several else "") for name, options, _, _ in commands for o in options]
    if several:
        names = tuple(name for name, *_ in commands if name)
        found.insert(0, Option("command", required=True, choices=names, help="which command to run"))
    return CommandLine("click", tuple(found), commands[0][2])


def _is_group(flow: Flow, receiver: ast.expr) -> bool:
    nodes = [v.node for v in flow.values(receiver) if isinstance(v, Local)]
    return any("group" in ast.unparse(d) for n in nodes for d in getattr(n, "decorator_list", []))


def _click_option(call: ast.Call, argument: bool, evaluator: Evaluator) -> Option:
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    flags = tuple(part for n in names if n.startswith("-") for part in n.split("/"))
    plain = [n for n in names if not n.startswith("-")]
    longest = max(flags, key=len, default="")
    settings = {k.arg: k.value for k in call.keywords if k.arg}
    values = {k: evaluator.value(v) for k, v in settings.items()}
    kind, choices = "str", ()
    if "type" in settings:
        kind = ast.unparse(settings["type"])
        node = settings["type"]
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Choice") and node.args:
            held = evaluator.value(node.args[0])
            choices = tuple(held) if isinstance(held, list | tuple) else ()
    elif isinstance(values.get("default"), bool | int | float):
        kind = type(values["default"]).__name__
    is_flag = bool(values.get("is_flag") is True or any("/" in n for n in names if n.startswith("--")))
    default = values.get("default")
    required = values.get("required", argument and "default" not in settings and values.get("nargs") != -1)
    name = plain[0] if plain else longest.lstrip("-").replace("-", "_")
    return Option(name, flags, kind, default, required is True, choices, str(values.get("help") or ""), not is_flag)


def _typer(tree: ast.Module, flow: Flow, evaluator: Evaluator, calls: list[ast.Call]) -> CommandLine:
    functions: list[ast.AST] = []
    for call in calls:
        if _is(flow, call, "typer.run") and call.args:
            functions += [v.node for v in flow.values(call.args[0]) if isinstance(v, Local)]
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", []):
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            values = flow.values(target) if isinstance(target, ast.Attribute) else frozenset()
            if any(isinstance(v, Member) and v.instance == Made("typer.Typer") and v.name == "command" for v in values):
                functions.append(node)
    if not functions:
        return CommandLine()
    options: list[Option] = []
    for function in functions:
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        command = function.name.replace("_", "-") if len(functions) > 1 else ""
        options += [replace(o, command=command) for o in _typer_options(function, evaluator)]
    if len(functions) > 1:
        names = tuple(getattr(f, "name", "").replace("_", "-") for f in functions)
        options.insert(0, Option("command", required=True, choices=names, help="which command to run"))
    return CommandLine("typer", tuple(options), getattr(functions[0], "lineno", 0))


def _typer_options(function: ast.FunctionDef | ast.AsyncFunctionDef, evaluator: Evaluator) -> list[Option]:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    defaults: list[ast.expr | None] = [None] * (len(function.args.args) - len(function.args.defaults))
    defaults += [*function.args.defaults, *function.args.kw_defaults]
    options = []
    for argument, default in zip(arguments, defaults, strict=True):
        annotation, marker = argument.annotation, default
        if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Annotated"):
            parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            annotation = parts[0]
            marker = next((p for p in parts[1:] if isinstance(p, ast.Call)), default)
        value: Any = evaluator.value(default) if default is not None else ...
        settings: dict[str, Any] = {}
        flags: tuple[str, ...] = ()
        kind = "Option" if default is not None else "Argument"
        if isinstance(marker, ast.Call):
            kind = ast.unparse(marker.func).rpartition(".")[2]
            settings = {k.arg: evaluator.value(k.value) for k in marker.keywords if k.arg}
            texts = [evaluator.value(a) for a in marker.args]
            flags = tuple(t for t in texts if isinstance(t, str) and t.startswith("-"))
            if marker is default:
                value = texts[0] if marker.args else settings.get("default", ...)
        required = value is ...
        if kind == "Option" and not flags:
            flags = (f"--{argument.arg.replace('_', '-')}",)
        kind_text = ast.unparse(annotation) if annotation is not None else "str"
        shown = None if required else value
        options.append(
            Option(argument.arg, flags if kind == "Option" else (), kind_text, shown, required, (),
                   str(settings.get("help") or ""), kind_text != "bool")
        )  # fmt: skip
    return options


def _fire(tree: ast.Module, flow: Flow, evaluator: Evaluator, calls: list[ast.Call]) -> CommandLine:
    launches = [c for c in calls if _is(flow, c, "fire.Fire")]
    if not launches:
        return CommandLine()
    targets = [v.node for a in launches[0].args[:1] for v in flow.values(a) if isinstance(v, Local)]
    options: list[Option] = []
    for node in targets:
        if isinstance(node, ast.ClassDef):
            makers = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            commands = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            options += [o for maker in makers for o in _fire_options(Signature.of(maker, bound=True))]
            options.append(Option("command", required=True, choices=tuple(commands), help="which method to run"))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            options += _fire_options(Signature.of(node))
    return CommandLine("fire", tuple(options), launches[0].lineno)


def _fire_options(signature: Signature) -> list[Option]:
    def default(text: str | None) -> Any:
        try:
            return ast.literal_eval(text) if text is not None else None
        except ValueError:
            return Unknown(text or "")

    return [
        Option(p.name, (f"--{p.name}",), p.annotation or "str", default(p.default), p.required)
        for p in signature.parameters
    ]


def _argv(tree: ast.Module, flow: Flow) -> CommandLine:
    """`sys.argv[1]` must be there unless the script looks at how many there are."""
    indices: dict[int, int] = {}
    measured = False
    for node in ast.walk(tree):
        if node not in flow.scopes.of_node:
            continue
        if isinstance(node, ast.Subscript) and _refers(flow, node.value, "sys.argv"):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int) and node.slice.value > 0:
                indices.setdefault(node.slice.value, node.lineno)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and node.args:
            measured |= _refers(flow, node.args[0], "sys.argv")
    if not indices:
        return CommandLine()
    options = [
        Option(f"argument_{i}", required=not measured, help=f"sys.argv[{i}], read in line {indices.get(i, 0)}")
        for i in range(1, max(indices) + 1)
    ]
    return CommandLine("sys.argv", tuple(options), min(indices.values()))


def _is(flow: Flow, call: ast.Call, dotted: str) -> bool:
    return _refers(flow, call.func, dotted)


def _refers(flow: Flow, node: ast.expr, dotted: str) -> bool:
    return any(isinstance(v, Ref) and v.dotted == dotted for v in flow.values(node))
