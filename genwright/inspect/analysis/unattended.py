"""What would stop a script when nobody is at the keyboard, and what it must be given."""

import ast
from dataclasses import dataclass, field

from genwright.inspect.analysis.abstract_values import Made, Member, Ref
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.cli_options import CommandLine
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import Function, arguments, is_main_guard

_ANSWERED = {
    *("builtins.input", "getpass.getpass", "fileinput.input", "fileinput.FileInput", "click.prompt", "click.confirm"),
    *("click.getchar", "typer.prompt", "typer.confirm", "prompt_toolkit.prompt", "prompt_toolkit.PromptSession"),
    *("rich.prompt.Prompt.ask", "rich.prompt.Confirm.ask", "rich.prompt.IntPrompt.ask", "rich.prompt.FloatPrompt.ask"),
}
_WINDOWS = {
    *("matplotlib.pyplot.show", "cv2.imshow", "cv2.waitKey", "webbrowser.open", "tkinter.mainloop"),
    *("open3d.visualization.draw_geometries", "open3d.visualization.draw", "pygame.display.set_mode"),
}
_BACKENDS = {"matplotlib.use", "matplotlib.pyplot.switch_backend"}
_FILE_BACKENDS = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}
_SERVERS = {
    *("uvicorn.run", "aiohttp.web.run_app", "websockets.serve", "websockets.server.serve", "waitress.serve"),
    *("websockets.asyncio.server.serve", "websockets.sync.server.serve"),
}
_SERVED = {"flask.Flask": "{}.run()", "fastapi.FastAPI": "__import__('uvicorn').run({})"}
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
class Unattended:
    """What a script reads from people, and how it starts."""

    command_line: CommandLine
    blockers: list[Blocker]
    handlers: list[str]
    entry: str
    has_entry: bool
    environment: dict[str, str] = field(default_factory=dict)

    def missing(self, scenario: Scenario) -> list[str]:
        """Every value that is required and that neither the script nor the scenario gives, each with type and help."""
        missing = [o.describe() for o in self.command_line.missing(scenario.argv)]
        if len(self.handlers) > 1 and not scenario.handlers:
            missing.append(f"ui.handler (some of {', '.join(self.handlers)}): what visitors make the script call")
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
    blockers: list[Blocker] = []
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
        elif names & _WINDOWS or _chooses_windows(node, names) or _is_main_loop(node):
            blockers.append(Blocker("window", node.lineno, ast.unparse(node)))
            if names & {"matplotlib.pyplot.show", *_BACKENDS}:
                environment["MPLBACKEND"] = "Agg"
        elif names & _SERVERS or _serves(node, flow):
            blockers.append(Blocker("server", node.lineno, ast.unparse(node)))
        elif names & _DEBUGGERS:
            blockers.append(Blocker("debugger", node.lineno, ast.unparse(node)))
            environment["PYTHONBREAKPOINT"] = "0"
        elif _launches(node, flow):
            blockers.append(Blocker("ui", node.lineno, ast.unparse(node)))
    page = _imports(flow, "streamlit")
    if page:
        blockers.append(Blocker("ui", page, "streamlit"))
    is_visited = any(b.kind in ("ui", "server") for b in blockers)
    serving = "" if is_visited else _serving(tree, flow)
    has_entry, entry = (False, serving) if serving else _entry(tree, location)
    if not has_entry:
        blockers.append(Blocker("entry", 0, entry))
    handlers = _handlers(location) if (is_visited or serving) and not page else []
    return Unattended(command_line, blockers, handlers, entry, has_entry, environment)


def _handlers(location: Location) -> list[str]:
    """The functions that cross the model and that the script hands on or never calls, by name and in their order."""
    flow = location.flow
    found = [n for n in location.crossing if isinstance(n, Function | ast.Lambda)]
    handed: set[ast.AST] = set()
    for node in flow.nodes:
        parent = flow.scopes.parent.get(node)
        if isinstance(node, ast.Name | ast.Attribute) and not (isinstance(parent, ast.Call) and parent.func is node):
            handed.update(flow.definitions(node))
    found = [n for n in found if n in handed or not flow.callers(n)]
    found.sort(key=lambda n: (n.lineno, n.col_offset))
    return list(dict.fromkeys(flow.scopes.opened_by[n].name for n in found))


def opens_windows(backend: object) -> bool:
    """Whether a backend of matplotlib, by its name, opens windows; one of another module is taken not to."""
    if not isinstance(backend, str) or backend.startswith("module://"):
        return False
    return backend.lower() not in _FILE_BACKENDS


def _chooses_windows(call: ast.Call, names: set[str]) -> bool:
    given = [a.value for a in arguments(call)[:1] if isinstance(a, ast.Constant)]
    return bool(names & _BACKENDS) and any(map(opens_windows, given))


def _is_main_loop(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "mainloop"


def _serves(call: ast.Call, flow: Flow) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("run", "serve_forever"):
        return False
    flask = Member(Made("flask.Flask"), "run")
    return call.func.attr == "serve_forever" or flask in flow.values(call.func)


def _serving(tree: ast.Module, flow: Flow) -> str:
    """How to serve the web application that a script makes and leaves to a server's own command, or ""."""
    if any(map(is_main_guard, tree.body)):
        return ""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            made = {v.dotted for v in flow.values(statement.value.func) if isinstance(v, Ref)} & set(_SERVED)
            if made and isinstance(statement.targets[0], ast.Name):
                return _SERVED[made.pop()].format(statement.targets[0].id)
    return ""


def _launches(call: ast.Call, flow: Flow) -> bool:
    return any(
        isinstance(v, Member)
        and v.name == "launch"
        and isinstance(v.instance, Made)
        and v.instance.by.startswith("gradio.")
        for v in flow.values(call.func)
    )


def _imports(flow: Flow, package: str) -> int:
    """The line that imports a package, or 0."""
    for node in flow.nodes:
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if any(n.partition(".")[0] == package for n in names):
            return node.lineno
    return 0


def _entry(tree: ast.Module, location: Location) -> tuple[bool, str]:
    """Whether the script runs anything by itself; if not, the one function that would be its main."""
    flow = location.flow
    sites = {s.call for s in location.sites}
    functions = [n for n in tree.body if isinstance(n, Function)]
    for statement in tree.body:
        if isinstance(statement, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        if is_main_guard(statement) or isinstance(statement, ast.For | ast.While):
            return True, ""
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call) or flow.scopes.of_node.get(node) is not flow.scopes.module:
                continue
            if node in sites or _starts(node, flow):
                return True, ""
    uncalled = [f for f in functions if not flow.callers(f) and not any(p.required for p in Signature.of(f).parameters)]
    reaching = [f for f in uncalled if f in location.crossing]
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
    if flow.definitions(call.func) or any(map(flow.definitions, arguments(call))):
        return True
    last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return last in _STARTS or any(isinstance(v, Made) for v in flow.values(call.func))
