"""What would stop a script when nobody is at the keyboard, and what it must be given."""

import ast
from dataclasses import dataclass, field
from typing import Any

from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.cli_options import CommandLine
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import walk
from genwright.inspect.analysis.values import Made, Member, Ref

_ANSWERED = {
    *("builtins.input", "getpass.getpass", "fileinput.input", "fileinput.FileInput", "click.prompt", "click.confirm"),
    *("click.getchar", "typer.prompt", "typer.confirm", "prompt_toolkit.prompt", "prompt_toolkit.PromptSession"),
    *("rich.prompt.Prompt.ask", "rich.prompt.Confirm.ask", "rich.prompt.IntPrompt.ask", "rich.prompt.FloatPrompt.ask"),
}
_WINDOWS = {
    *("matplotlib.pyplot.show", "cv2.imshow", "cv2.waitKey", "webbrowser.open", "tkinter.mainloop"),
    *("open3d.visualization.draw_geometries", "open3d.visualization.draw", "pygame.display.set_mode"),
}
_SERVERS = {"uvicorn.run", "aiohttp.web.run_app"}
_DEBUGGERS = {"builtins.breakpoint", "pdb.set_trace"}
_ENTRY_NAMES = ("main", "cli", "run")
_STARTS = ("main", "run", "launch", "start", "serve", "mainloop")


@dataclass(frozen=True)
class Blocker:
    """One thing that would stop an unattended run: its kind, line and text."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Component:
    """An input of a user interface: its class, label, choices, and the type of value that it gives."""

    kind: str
    label: str = ""
    choices: tuple[Any, ...] = ()
    type: str = ""


@dataclass(frozen=True)
class Handler:
    """A function that a user interface calls, with what its components give it."""

    name: str
    function: ast.FunctionDef | ast.AsyncFunctionDef
    defaults: dict[str, Any]
    labels: dict[str, str]
    components: dict[str, Component] = field(default_factory=dict)

    def missing(self, given: dict[str, Any]) -> list[str]:
        parameters = Signature.of(self.function).parameters
        return [p.name for p in parameters if p.required and p.name not in given and p.name not in self.defaults]


@dataclass(frozen=True)
class Unattended:
    """What a script reads from people, and how it starts."""

    command_line: CommandLine
    launches: list[ast.Call]
    handlers: list[Handler]
    blockers: list[Blocker]
    page: bool
    entry: str
    has_entry: bool
    environment: dict[str, str] = field(default_factory=dict)

    def handler(self, name: str) -> Handler | None:
        if not name and len(self.handlers) == 1:
            return self.handlers[0]
        return next((h for h in self.handlers if h.name == name), None)

    def missing(self, scenario: Scenario) -> list[str]:
        """Every value that is required and that neither the script nor the scenario gives, each with type and help."""
        missing = [o.describe() for o in self.command_line.missing(scenario.argv)]
        if self.launches or self.page:
            handler = self.handler(scenario.handler)
            if handler is None:
                names = ", ".join(h.name for h in self.handlers) or "a function of the script"
                missing.append(f"ui.handler (one of {names}): what to call instead of the user interface")
            else:
                for name in handler.missing(scenario.handler_arguments):
                    label = handler.labels.get(name, "")
                    missing.append(f"ui.arguments.{name} of {handler.name}" + (f": {label}" if label else ""))
        if not self.has_entry and not self.entry and not scenario.entry:
            missing.append("entry (a Python expression): the script only defines things; name what to run")
        return missing


def read_unattended(tree: ast.Module, location: Location, command_line: CommandLine) -> Unattended:
    """Find input, user interfaces, windows and debuggers, and how the script starts."""
    flow = location.flow
    nodes = sorted(
        (n for n in flow.nodes if isinstance(n, ast.Call | ast.Attribute)),
        key=lambda n: (n.lineno, n.col_offset),
    )
    launches, blockers = list[ast.Call](), list[Blocker]()
    environment: dict[str, str] = {}
    if command_line.kind:
        blockers.append(Blocker(command_line.kind, command_line.line, ""))
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if Ref("sys.stdin") in flow.values(node) and isinstance(node.value, ast.Name):
                blockers.append(Blocker("input", node.lineno, ast.unparse(node)))
            continue
        names = {v.dotted for v in flow.values(node.func) if isinstance(v, Ref)}
        if names & _ANSWERED:
            blockers.append(Blocker("input", node.lineno, ast.unparse(node)))
        elif names & _WINDOWS or (isinstance(node.func, ast.Attribute) and node.func.attr == "mainloop"):
            blockers.append(Blocker("window", node.lineno, ast.unparse(node)))
            if "matplotlib.pyplot.show" in names:
                environment["MPLBACKEND"] = "Agg"
        elif names & _SERVERS or _serves(node, flow):
            blockers.append(Blocker("server", node.lineno, ast.unparse(node)))
        elif names & _DEBUGGERS:
            blockers.append(Blocker("debugger", node.lineno, ast.unparse(node)))
            environment["PYTHONBREAKPOINT"] = "0"
        elif _launches(node, flow):
            # An f-string has no room for another call's quotes.
            launches += [] if flow.scopes.in_f_string(node) else [node]
            blockers.append(Blocker("ui", node.lineno, ast.unparse(node)))
    page = _imports(tree, "streamlit")
    if page:
        blockers.append(Blocker("ui", page, "streamlit"))
    has_entry, entry = _entry(tree, location)
    if not has_entry:
        blockers.append(Blocker("entry", 0, entry))
    handlers = _handlers(tree, nodes, flow) if launches or page else []
    return Unattended(command_line, launches, handlers, blockers, bool(page), entry, has_entry, environment)


def _serves(call: ast.Call, flow: Flow) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("run", "serve_forever"):
        return False
    flask = Member(Made("flask.Flask"), "run")
    return call.func.attr == "serve_forever" or flask in flow.values(call.func)


def _launches(call: ast.Call, flow: Flow) -> bool:
    return any(
        isinstance(v, Member)
        and v.name == "launch"
        and isinstance(v.instance, Made)
        and v.instance.by.startswith("gradio.")
        for v in flow.values(call.func)
    )


def _imports(tree: ast.Module, package: str) -> int:
    """The line that imports a package, or 0."""
    for node in walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(n.partition(".")[0] == package for n in names):
            assert isinstance(node, ast.stmt)
            return node.lineno
    return 0


def _handlers(tree: ast.Module, nodes: list[Any], flow: Flow) -> list[Handler]:
    """Functions of the script that are handed to components; for a page, those it calls itself."""
    interpreter = CliInterpreter(tree, None, None)
    found: dict[str, Handler] = {}
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        event = call.func
        # `button.click(first).then(second)`: every event of a chain is the button's.
        while isinstance(event, ast.Attribute) and isinstance(event.value, ast.Call):
            event = event.value.func
        values = flow.values(event)
        by = {v.instance.by for v in values if isinstance(v, Member) and isinstance(v.instance, Made)}
        by |= {v.dotted for v in values if isinstance(v, Ref)}
        if not any(b.startswith("gradio.") for b in by):
            continue
        keywords = {k.arg: k.value for k in call.keywords}
        candidates = [*call.args[:1], *([keywords["fn"]] if "fn" in keywords else [])]
        inputs = keywords.get("inputs", call.args[1] if len(call.args) > 1 else None)
        for candidate in candidates:
            for function in flow.definitions(candidate):
                name = ast.unparse(candidate)
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    handler = _handler(tree, name, inputs, function, interpreter)
                    # Of several events, the one that gives the most inputs.
                    if name not in found or len(handler.components) > len(found[name].components):
                        found[name] = handler
    if not found:
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        found = {f.name: Handler(f.name, f, {}, {}) for f in functions}
    return list(found.values())


def _handler(
    tree: ast.Module,
    name: str,
    inputs: ast.expr | None,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    interpreter: CliInterpreter,
) -> Handler:
    """A handler with what each input component gives its parameter when nobody touches it."""
    made = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    elements = inputs.elts if isinstance(inputs, ast.List | ast.Tuple) else [inputs] if inputs else []
    defaults: dict[str, Any] = {}
    labels: dict[str, str] = {}
    components: dict[str, Component] = {}
    for parameter, element in zip(Signature.of(function).positional, elements, strict=False):
        component = element if isinstance(element, ast.Call) else made.get(getattr(element, "id", ""))
        keywords = {k.arg: interpreter.value(k.value) for k in component.keywords} if component is not None else {}
        kind = ast.unparse(component.func).rpartition(".")[2] if component is not None else ""
        labels[parameter.name] = ", ".join(str(t) for t in (kind, keywords.get("label", "")) if t)
        held = keywords.get("choices")
        choices = tuple(c[-1] if isinstance(c, tuple) and c else c for c in held) if isinstance(held, list) else ()
        plain = tuple(c for c in choices if isinstance(c, str | int | float))
        components[parameter.name] = Component(
            kind, str(keywords.get("label", "")), plain, str(keywords.get("type", ""))
        )
        if "value" in keywords and isinstance(keywords["value"], str | int | float | bool):
            defaults[parameter.name] = keywords["value"]
        elif isinstance(keywords.get("value"), Unknown):
            labels[parameter.name] += f" (the script's own: {keywords['value'].text})"
    return Handler(name, function, defaults, labels, components)


def _entry(tree: ast.Module, location: Location) -> tuple[bool, str]:
    """Whether the script runs anything by itself; if not, the one function that would be its main."""
    flow = location.flow
    sites = {s.call for s in location.sites}
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return True, ""
        if isinstance(statement, ast.For | ast.While):
            return True, ""
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call) or flow.scopes.of_node.get(node) is not flow.scopes.module:
                continue
            if node in sites or _starts(node, flow):
                return True, ""
    uncalled = [f for f in functions if not flow.callers(f) and not any(p.required for p in Signature.of(f).parameters)]
    reaching = [f for f in uncalled if reaches(f, sites, flow, set())]
    named = [f for f in uncalled if f.name in _ENTRY_NAMES]
    for candidates in (named, reaching):
        if len(candidates) == 1:
            chosen = candidates[0]
            is_async = isinstance(chosen, ast.AsyncFunctionDef)
            return False, f"__import__('asyncio').run({chosen.name}())" if is_async else f"{chosen.name}()"
    # Without a site there is nothing to reach.
    return not sites, ""


def _starts(call: ast.Call, flow: Flow) -> bool:
    """Whether a top-level call runs the script's own code, as `main()`, `app()` and `fire.Fire(main)` do."""
    handed = [*call.args, *(k.value for k in call.keywords)]
    if flow.definitions(call.func) or any(flow.definitions(a) for a in handed):
        return True
    last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return last in _STARTS or any(isinstance(v, Made) for v in flow.values(call.func))


def reaches(function: ast.AST, sites: set[ast.Call], flow: Flow, seen: set[ast.AST]) -> bool:
    """Whether a function calls an interface, itself or through others of the script."""
    if function in seen:
        return False
    seen.add(function)
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    return any(c in sites or any(reaches(d, sites, flow, seen) for d in flow.definitions(c.func)) for c in calls)
