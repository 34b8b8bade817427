"""Slice: a function that reproduces the arguments of one recorded call without the model, and its proof."""

import ast
import json
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.backward_slice import backward_slice
from genwright.inspect.analysis.locate import locate, parse
from genwright.inspect.analysis.manifest import Manifest, parse_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scopes import Scopes
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import arguments, called_name
from genwright.inspect.isolation.isolation import Ended, Isolation, Limits, run_isolated
from genwright.inspect.records.plan_file import read_plan
from genwright.inspect.records.script_source import PreparedScript, prepared_source
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.replay.recorded_results import same_arguments

_ROOT = Path(__file__).parents[3]
_SECONDS = 600
_DISPATCH = ("interface_class_name", "interface_factory")
_IMPURE = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


@dataclass(frozen=True)
class ProgramSlice:
    """The text of a slice, and how many of the script's statements are in it."""

    call: Call
    text: str
    kept: int
    total: int


def slice_call(run: StoredRun, number: int, isolation: Isolation | None = None) -> ProgramSlice:
    """The smallest slice that is proved to give the recorded arguments: the backward slice, or else the whole script.

    Raises `UserError` where neither does, as with unseeded random numbers.
    """
    call = run.call(number)
    prepared, script = prepared_source(run), Path(str(run.data.get("script", "")))
    if call.event not in ("create", "run"):
        raise UserError(f"Call {number} of {run.name} is no call of an interface but the event {call.event!r}.")
    if call.line is None or (call.file and Path(call.file).name != script.name):
        raise UserError(f"Call {number} of {run.name} is not made by a line of {script.name}; it cannot be sliced.")
    tree = parse(prepared.text, script.name)
    repository = Repository.around(script)
    location = locate(tree, _manifest(run), repository.module(script), repository.package(script))
    sites = _sites(location, tree, run, prepared)
    target = next((c for c, (line, name) in sites.items() if (line, name) == (call.line, call.interface)), None)
    if target is None:
        raise UserError(f"Line {call.line} of {script.name} has no call of {call.interface}; was it changed?")
    if any(s.call is target and s.note.startswith("a command") for s in location.sites):
        raise UserError(f"Line {call.line} of {script.name} starts a command, which reads its arguments from argv.")
    # Of several calls of the interface on the line the records tell which is meant.
    recorded = {c: s == sites[target] or any(isinstance(n, _IMPURE) for n in _arguments(c)) for c, s in sites.items()}
    total = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    failure: UserError | None = None
    for kept in (backward_slice(location.flow, target, recorded), set(total)):
        made = ProgramSlice(call, _write(tree, kept, sites, recorded, run, call), len(kept), len(total))
        try:
            prove(made, run, isolation or Isolation())
            return made
        except UserError as error:
            failure = error
    assert failure is not None
    raise failure


def prove(made: ProgramSlice, run: StoredRun, isolation: Isolation) -> None:
    """Run a slice, isolated as the run itself was: its arguments must equal the recorded ones."""
    call = made.call
    ended, output, error = _run(made.text, run, isolation)
    if ended.status in ("refused", "limit"):
        raise UserError(ended.message or f"The slice of call {call.number} runs for more than {_SECONDS} s.")
    if ended.status != "ended":
        said = error.strip().splitlines() or ["it says nothing"]
        raise UserError(f"The slice of call {call.number} fails: {said[-1].removeprefix('genwright: ')}")
    told = json.loads(output.splitlines()[-1])
    if not same_arguments(call, told["arguments"], told["keywords"]):
        raise UserError(
            f"The slice of call {call.number} gives other arguments than the record; what line {call.line} is given "
            f"depends on something that no record holds, such as unseeded random numbers or the time."
        )


def _run(text: str, run: StoredRun, isolation: Isolation) -> tuple[Ended, str, str]:
    """How a slice ends, and what it prints; it may read the run's folder and what the run could read."""
    script = Path(str(run.data.get("script", "")))
    beside = script.parent if script.parent.is_dir() else run.path
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    plan = read_plan(run.path)
    known = [Path(p) for p in ([*plan.path, *plan.readable] if plan is not None else []) if Path(p).exists()]
    readable = (*isolation.readable, *known, run.path, _ROOT)
    limits = Limits.of_scenario({"seconds": _SECONDS}, run.path)
    isolation = replace(isolation, limits=limits, environment={"PYTHONPATH": path}, readable=readable)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "slice.py").write_text(text, encoding="utf-8")
        command = [sys.executable, str(folder / "slice.py")]
        ended = run_isolated(command, folder, beside, Repository.around(beside / script.name).root, isolation)
        printed = [folder / "output.txt", folder / "error.txt"]
        output, error = (p.read_text(encoding="utf-8", errors="replace") if p.is_file() else "" for p in printed)
        return ended, output, error


def _manifest(run: StoredRun) -> Manifest:
    """The interfaces that the run recorded."""
    plan = read_plan(run.path)
    if plan is not None and plan.manifest.get("interface"):
        return parse_manifest(plan.manifest, run.name)
    entries = [{"name": name, "module": module or ""} for name, module in (run.data.get("interfaces") or {}).items()]
    for entry in entries:
        if "." not in entry["name"] and entry["name"][:1].isupper():
            entry["kind"] = "class"
    project = str(run.data.get("name"))
    return parse_manifest({"project": project, "interface": entries}, run.name) if entries else Manifest(project, ())


def _sites(
    location: Location, tree: ast.Module, run: StoredRun, prepared: PreparedScript
) -> dict[ast.Call, tuple[int, str]]:
    """The calls of the script that were recorded: those that are located, and any other on a recorded line."""
    sites = {s.call: (prepared.original_line(_line(s.call)), s.interface.name) for s in location.sites}
    lines = {(c.line, c.interface, c.event) for c in run.calls() if c.event in ("create", "run")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in sites:
            last = called_name(node)
            for line, name, event in lines:
                if prepared.original_line(_line(node)) != line:
                    continue
                if last == {"run": "run", "create": "create_interface_objects"}[event]:
                    # A script that calls the executor itself names the interface among the arguments.
                    node.args = node.args[1:] if event == "run" else node.args
                    node.keywords = [k for k in node.keywords if k.arg not in _DISPATCH]
                    sites[node] = (line, name)
                elif last == name.rpartition(".")[2]:
                    sites[node] = (line, name)
    return sites


def _line(call: ast.Call) -> int:
    """The line that Python gives for a call: that of the method's name, if it stands on a line of its own."""
    function = call.func
    return function.end_lineno or call.lineno if isinstance(function, ast.Attribute) else call.lineno


def _arguments(call: ast.Call) -> list[ast.AST]:
    return [n for a in arguments(call) for n in ast.walk(a)]


def _write(
    tree: ast.Module,
    kept: set[ast.stmt],
    sites: dict[ast.Call, tuple[int, str]],
    recorded: dict[ast.Call, bool],
    run: StoredRun,
    call: Call,
) -> str:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    sliced = next(name for name in ("sliced", "sliced_call", "genwright_sliced_call") if name not in names)
    script = Path(str(run.data.get("script", "")))
    plan = read_plan(run.path)
    given: list[str] = []  # what the script finds beside its own names
    samples: list[str] = []
    if plan is not None and plan.package:
        given.append(f"__package__ = {plan.package!r}")
    if plan is not None and plan.resources:
        samples = ["from genwright.inspect.media.samples import sample_folder"]
        given.append(f"{plan.resources} = f'{{sample_folder()}}/'")
    body = _Cut(kept, sites, recorded, sliced, str(script)).block(tree.body)
    future = [s for s in body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    body = [s for s in body if s not in future] or [ast.Pass()]
    assigned = sorted(Scopes(ast.Module(body, [])).module.bound)
    name = "arguments" if "arguments" not in assigned else "call_arguments"
    # The script's own level becomes a function's; its names stay those of the module.
    declared: list[ast.stmt] = [ast.Global(names=assigned)] if assigned else []
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    decorator = ast.parse(f"{sliced}.function", mode="eval").body
    function = ast.FunctionDef(name=name, args=empty, body=[*declared, *body], decorator_list=[decorator])
    lines = [
        f'"""The arguments of call {call.number} ({call.interface}) of the run {run.name}, without its model."""',
        *map(ast.unparse, future),
        "",
        *samples,
        "from genwright.inspect.replay.sliced_call import SlicedCall",
        "",
        *given,
        f"{sliced} = SlicedCall({str(run.path)!r}, {call.number})",
        "",
        "",
        ast.unparse(ast.fix_missing_locations(function)),
        "",
        "",
        'if __name__ == "__main__":',
        f"    {sliced}.show({name})",
    ]
    return "\n".join(lines) + "\n"


class _Cut(ast.NodeTransformer):
    """Takes out the statements that are not kept, and puts recorded results in the place of interface calls."""

    def __init__(
        self,
        kept: set[ast.stmt],
        sites: dict[ast.Call, tuple[int, str]],
        recorded: dict[ast.Call, bool],
        sliced: str,
        script: str,
    ) -> None:
        self._kept, self._sites, self._recorded, self._sliced, self._script = kept, sites, recorded, sliced, script

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in (s for s in body if s in self._kept):
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
                kept += self.block(statement.body)
            else:
                kept.append(self.visit(statement))
        return kept

    def generic_visit(self, node: ast.AST) -> Any:
        fields: dict[str, Any] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                empty = name in ("orelse", "finalbody") and not (
                    name == "finalbody" and not getattr(node, "handlers", True)
                )
                fields[name] = self.block(value) or ([] if empty else [ast.Pass()])
            elif isinstance(value, list):
                fields[name] = [self.visit(v) if isinstance(v, ast.AST) else v for v in value]
            else:
                fields[name] = self.visit(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node not in self._sites:
            return self.generic_visit(node)
        line, interface = self._sites[node]
        given = self._recorded[node]
        arguments = [self.visit(a) for a in node.args] if given else []
        keywords = [self.visit(k) for k in node.keywords] if given else []
        place = [ast.Constant(line), ast.Constant(interface)]
        return ast.Call(ast.Name(self._sliced, ast.Load()), [*place, *arguments], keywords)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        known = {"__name__": "__main__", "__file__": self._script}
        if isinstance(node.ctx, ast.Load) and node.id in known:
            return ast.Constant(known[node.id])
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.names[0].name != "*":
            return node
        # Only a module's own level may import everything.
        return ast.parse(f"exec({ast.unparse(node)!r}, globals())").body[0]
