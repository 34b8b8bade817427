"""A script's steps in the order in which it reaches them: what each reads, writes and calls of the interfaces."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.file_arguments import READERS
from genwright.inspect.analysis.outputs import argument, written_path
from genwright.inspect.analysis.sites import Site
from genwright.inspect.analysis.syntax import Function

_LOADERS = ("torch.load", "numpy.load", "safetensors.torch.load_file", "joblib.load", "json.load", "yaml.safe_load")


@dataclass(frozen=True)
class Item:
    """Something that enters or leaves a step: its kind (options, keyboard, file, window, page), text and line."""

    kind: str
    text: str
    line: int


@dataclass
class Step:
    """The script's top level, or one of its functions, with what happens in it."""

    name: str
    line: int
    node: ast.AST
    crossings: list[Site] = field(default_factory=list)
    reads: list[Item] = field(default_factory=list)
    writes: list[Item] = field(default_factory=list)
    reached: list["Step | Site"] = field(default_factory=list)  # first calls of other steps and of interfaces, in order


def steps(analysis: Analysis) -> list[Step]:
    """The top level first, then each function of the script when it is first reached."""
    walker = _Walker(analysis)
    top = Step("", 1, analysis.tree)
    walker.found[analysis.tree] = top
    body = [n for n in analysis.tree.body if not isinstance(n, Function | ast.ClassDef)]
    walker.walk(body, top)
    for root in _roots(analysis):
        walker.reach(root, top)
    _fill(analysis, walker.found)
    return list(walker.found.values())


class _Walker:
    """Follows calls into the script's own functions, each once."""

    def __init__(self, analysis: Analysis) -> None:
        self.flow = analysis.location.flow
        self.sites = {s.call: s for s in analysis.location.sites}
        self.found: dict[ast.AST, Step] = {}

    def walk(self, body: Iterable[ast.AST], step: Step) -> None:
        calls = [n for node in body for n in ast.walk(node) if isinstance(n, ast.Call)]
        for call in sorted(calls, key=lambda n: (n.lineno, n.col_offset)):
            if call in self.sites:  # What an interface does is on the model's side.
                step.reached.append(self.sites[call])
                continue
            for node in self.flow.definitions(call.func) if call in self.flow.scopes.of_node else ():
                self.reach(node, step)

    def reach(self, node: ast.AST, caller: Step) -> None:
        if isinstance(node, Function) and node not in self.found:
            step = self.found[node] = Step(node.name, node.lineno, node)
            caller.reached.append(step)
            self.walk(node.body, step)


def _roots(analysis: Analysis) -> list[ast.AST]:
    """Functions that nothing in the script calls and that reach an interface: handlers, commands, entries."""
    flow = analysis.location.flow
    inner = {node for _, node in analysis.location.defined}  # the model's side
    functions = [n for n in flow.nodes if isinstance(n, Function) and n in analysis.location.crossing]
    return [n for n in functions if n not in inner and not flow.callers(n)]


def _fill(analysis: Analysis, found: dict[ast.AST, Step]) -> None:
    """Put every crossing, file, question and window into the step whose code holds it."""
    flow, unattended = analysis.location.flow, analysis.unattended
    of_line: dict[int, Step] = {}
    for step in sorted(found.values(), key=lambda s: s.line):  # inner ones after those around them
        if isinstance(step.node, Function):
            of_line |= dict.fromkeys(range(step.line, (step.node.end_lineno or step.line) + 1), step)

    def at(line: int) -> Step:
        return of_line.get(line, found[analysis.tree])

    for site in analysis.location.sites:
        at(site.call.lineno).crossings.append(site)
    if unattended.command_line.kind:
        flags = ", ".join(o.label for o in unattended.command_line.options)
        line = unattended.command_line.line
        at(line).reads.append(Item("options", flags or unattended.command_line.kind, line))
    for blocker in unattended.blockers:
        if blocker.kind == "input":
            at(blocker.line).reads.append(Item("keyboard", blocker.text, blocker.line))
        elif blocker.kind in ("window", "server", "ui"):
            kind = "window" if blocker.kind == "window" else "page"
            at(blocker.line).writes.append(Item(kind, blocker.text, blocker.line))
    for call in (n for n in flow.nodes if isinstance(n, ast.Call)):
        written = written_path(call, flow)
        if written is not None:
            at(call.lineno).writes.append(Item("file", ast.unparse(written), call.lineno))
            continue
        names = {v.dotted for v in flow.values(call.func) if isinstance(v, Ref)}
        if names & (READERS.keys() | set(_LOADERS)) and call.args:
            read = argument(call, 0, "file")
            at(call.lineno).reads.append(Item("file", ast.unparse(read or call.args[0]), call.lineno))
