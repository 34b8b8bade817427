"""Command lines made by click, typer and fire, read from decorators and signatures."""

import ast
from dataclasses import replace
from typing import Any

from genwright.inspect.analysis.abstract_values import Made, Member, Ref
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.cli_options import CommandLine, Option
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.syntax import Function


def read_click(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    commands: list[tuple[str, list[Option], int, bool]] = []
    for node in flow.nodes:
        if not isinstance(node, Function):
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
                isinstance(call.func, ast.Attribute)
                and call.func.attr == "command"
                and _is_group(flow, call.func.value)
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
        found.insert(0, Option.of_commands(name for name, *_ in commands if name))
    return CommandLine("click", tuple(found), commands[0][2])


def _is_group(flow: Flow, receiver: ast.expr) -> bool:
    nodes = flow.definitions(receiver)
    return any("group" in ast.unparse(d) for n in nodes for d in getattr(n, "decorator_list", []))


def _click_option(call: ast.Call, argument: bool, evaluator: CliInterpreter) -> Option:
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    flags = tuple(part for n in names if n.startswith("-") for part in n.split("/"))
    plain = [n for n in names if not n.startswith("-")]
    # `--loud/--quiet` is named after what switches it on.
    longest = max((n.partition("/")[0] for n in names if n.startswith("-")), key=len, default="")
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


def read_typer(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    functions: list[Any] = []
    for call in calls:
        if refers(flow, call.func, "typer.run") and call.args:
            functions += flow.definitions(call.args[0])
    for node in flow.nodes:
        for decorator in getattr(node, "decorator_list", []):
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            values = flow.values(target) if isinstance(target, ast.Attribute) else frozenset()
            if any(isinstance(v, Member) and v.instance == Made("typer.Typer") and v.name == "command" for v in values):
                functions.append(node)
    functions = [f for f in functions if isinstance(f, Function)]
    if not functions:
        return CommandLine()
    options: list[Option] = []
    for function in functions:
        command = function.name.replace("_", "-") if len(functions) > 1 else ""
        options += [replace(o, command=command) for o in _typer_options(function, evaluator)]
    if len(functions) > 1:
        options.insert(0, Option.of_commands(f.name.replace("_", "-") for f in functions))
    return CommandLine("typer", tuple(options), getattr(functions[0], "lineno", 0))


def _typer_options(function: Function, evaluator: CliInterpreter) -> list[Option]:
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


def read_fire(flow: Flow, evaluator: CliInterpreter, calls: list[ast.Call]) -> CommandLine:
    launches = [c for c in calls if refers(flow, c.func, "fire.Fire")]
    if not launches:
        return CommandLine()
    targets = [node for a in launches[0].args[:1] for node in flow.definitions(a)]
    options: list[Option] = []
    for node in targets:
        if isinstance(node, ast.ClassDef):
            makers = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            commands = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            options += [o for maker in makers for o in _fire_options(Signature.of(maker, bound=True))]
            options.append(Option.of_commands(commands, help="which method to run"))
        elif isinstance(node, Function | ast.Lambda):
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


def refers(flow: Flow, node: ast.expr, dotted: str) -> bool:
    """Whether an expression is the imported thing of a dotted name."""
    return any(isinstance(v, Ref) and v.dotted == dotted for v in flow.values(node))
