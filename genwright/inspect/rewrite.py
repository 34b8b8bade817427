"""Rewrite a script so that it runs unattended and every interface call goes through the executor."""

import ast
import difflib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst

from genwright.inspect.analysis import Analysis, analyse
from genwright.inspect.bind import may_name
from genwright.inspect.edits import Change, Edits, apply
from genwright.inspect.manifest import Manifest
from genwright.inspect.prepare import prepare
from genwright.inspect.repository import Repository, read_source
from genwright.inspect.scenario import Scenario, literal
from genwright.inspect.sites import Site
from genwright.inspect.substitute import Substitution, substitute
from genwright.inspect.verify import Header, verify


@dataclass(frozen=True)
class Rewrite:
    """A verified rewrite, and what led to it: the script understood as it was, and with the scenario's changes."""

    analysis: Analysis
    prepared: Analysis
    text: str
    samples: Substitution
    overridden: dict[str, str]
    missing: list[str]
    seconds: float

    @property
    def diff(self) -> str:
        name = self.analysis.script.name
        lines = difflib.unified_diff(
            _split(self.analysis.source), _split(self.text), name, f"{name} (rewritten)", lineterm=""
        )
        return "\n".join(line.rstrip("\r\n") for line in lines)

    @property
    def untouched(self) -> float:
        """The share of the original's lines that are in the rewrite to the letter, in order."""
        before, after = _split(self.analysis.source), _split(self.text)
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        return sum(b.size for b in blocks) / max(len(before), 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "script": str(self.analysis.script),
            **self.analysis.location.to_dict(),
            "missing": self.missing,
            "set": self.overridden,
            "samples": [r.to_dict() for r in self.samples.resources],
            "untouched": round(self.untouched, 4),
            "seconds": round(self.seconds, 3),
        }


def rewrite(
    script: Path,
    manifest: Manifest,
    scenario: Scenario | None = None,
    repository: Repository | None = None,
    label: str = "simulation",
    samples: bool = True,
) -> Rewrite:
    """Rewrite one script; raises `UserError` in one sentence when it cannot be done or does not verify.

    With `samples`, placeholder paths that the script opens are replaced by sample files.
    """
    started = time.perf_counter()
    scenario = scenario or Scenario()
    repository = repository or Repository.around(script)
    if scenario.interface:
        manifest = manifest.only(scenario.interface)
    source = read_source(script)
    original = analyse(source, script, manifest, repository)
    changed, overridden = prepare(original, scenario)
    prepared = analyse(changed, script, manifest, repository) if changed != source else original
    substitution = substitute(prepared, scenario, samples)
    if substitution.text != changed:
        prepared = analyse(substitution.text, script, manifest, repository)
    text = route(prepared, manifest.project, scenario, label, substitution.name)
    missing = original.unattended.missing(scenario)
    return Rewrite(original, prepared, text, substitution, overridden, missing, time.perf_counter() - started)


def route(
    analysis: Analysis, project: str, scenario: Scenario, label: str, resources: str = "", sites: bool = True
) -> str:
    """The script with header, registrations and routed calls, verified; without `sites` only made to run unattended."""
    location = analysis.location
    names = itertools.chain(["exe", "inspection_exe"], (f"inspection_exe_{n}" for n in itertools.count(2)))
    exe = next(n for n in names if not analysis.uses(n))
    routed = location.sites if sites else []
    edits = Edits(module_head=_header(analysis, project, scenario, label, resources, exe, routed))
    for site in routed:
        edits.expressions[analysis.lines.span(site.call)] = change_of(site, exe)
    for place, name in _registrations(analysis, routed):
        edits.after.setdefault(place, []).append(f"{exe}.register({name})")
    entry = scenario.entry or analysis.unattended.entry
    if entry and (scenario.entry or not analysis.unattended.has_entry):
        edits.module_tail += f"{entry}\n"
    text = apply(analysis.source, edits, analysis.script.name)
    verify(analysis, text, routed, Header(exe, edits.module_head, edits.module_tail))
    return text


def _header(
    analysis: Analysis, project: str, scenario: Scenario, label: str, resources: str, exe: str, sites: list[Site]
) -> str:
    """The traces' header: the executor, its record folder, and the script's own name, place and arguments."""
    script = analysis.script.resolve()
    unattended = analysis.unattended
    lines = ["import sys"]
    environment = unattended.environment | scenario.environment
    if environment:
        # Set before anything is imported, since libraries read it then.
        lines += ["import os", f"os.environ.update({literal(environment)})"]
    lines.append("from Inspection.core.executor import Executor")
    if resources:
        alias = f" as {resources}" if resources != "RESOURCES_PATH" else ""
        lines.append(f"from Inspection.utils.path_manager import RESOURCES_PATH{alias}")
    lines.append(f"{exe} = Executor({project!r}, {label!r})")
    lines.append(f"FILE_RECORD_PATH = {exe}.now_record_path")
    lines.append(f"sys.argv[:] = {[str(script), *scenario.argv]!r}")
    folders = dict.fromkeys(map(str, [script.parent, analysis.repository.top(script), analysis.repository.root]))
    lines.append(f"sys.path[:0] = {list(folders)!r}")
    lines.append(f"__file__ = {str(script)!r}")
    if analysis.package:
        lines.append(f"__package__ = {analysis.package!r}")
    given = {
        "interfaces": _homes(sites),
        "files": {s.interface.name: list(s.interface.files) for s in sites if s.interface.files},
        "answers": scenario.answers,
        "overrides": scenario.overrides,
        "scenario": scenario.kept(),
    }
    shown = ", ".join(f"{key}={literal(value)}" for key, value in given.items() if value)
    lines.append(f"{exe}.setup({shown})")
    if "builtins.input" in unattended.reads:
        lines.append(f"input = {exe}.input")
    if unattended.reads:
        lines.append(f"sys.stdin = {exe}.stdin")
    if "getpass.getpass" in unattended.reads:
        lines += ["import getpass", f"getpass.getpass = {exe}.input"]
    return "\n".join(lines) + "\n"


def _homes(sites: list[Site]) -> dict[str, str]:
    """Where each interface lives: its own module, that of its factory, or that of its class."""
    homes = {s.interface.name: s.home for s in sites if s.home and not s.factory}
    for site in sites:
        if site.factory:
            homes[f"{site.interface.name}.{site.factory}"] = site.home
        elif site.kind == "method":
            homes[site.interface.name] = homes.get(site.interface.owner, "")
    return homes


def change_of(site: Site, exe: str) -> Change:
    """What becomes of a call's text: another callee, the interface's name, and names for positional arguments."""
    names = may_name(site.signature, site.call)

    def change(node: cst.BaseExpression) -> cst.BaseExpression:
        assert isinstance(node, cst.Call)
        arguments = [_named(a, names[i] if i < len(names) else None) for i, a in enumerate(node.args)]
        if site.kind == "construction":
            words = [("interface_class_name", site.interface.name), ("interface_factory", site.factory)]
            extra = [_word(text, keyword) for keyword, text in words if text]
            # Positional arguments and stars stay in front of keywords.
            at = next((i for i, a in enumerate(arguments) if a.keyword is not None or a.star == "**"), len(arguments))
            return node.with_changes(
                func=_attribute(node.func, cst.Name(exe), "create_interface_objects"),
                args=_commas([*arguments[:at], *extra, *arguments[at:]]),
            )
        owner: cst.BaseExpression = cst.Name(exe)
        if site.on_object:
            by_attribute = isinstance(node.func, cst.Attribute) and site.interface.member != "__call__"
            receiver = node.func.value if by_attribute and isinstance(node.func, cst.Attribute) else node.func
            owner = cst.Call(cst.Attribute(cst.Name(exe), cst.Name("on")), [cst.Arg(receiver)])
        callee = node.func if site.interface.member != "__call__" else cst.Name(exe)
        return node.with_changes(func=_attribute(callee, owner, "run"), args=_commas([_word(site.word), *arguments]))

    return change


def _attribute(callee: cst.BaseExpression, owner: cst.BaseExpression, name: str) -> cst.Attribute:
    """`owner.name`, with the line breaks and comments that the old callee had around its dot."""
    if isinstance(callee, cst.Attribute):
        return callee.with_changes(value=owner, attr=cst.Name(name))
    return cst.Attribute(owner, cst.Name(name))


def _word(text: str, keyword: str = "") -> cst.Arg:
    value = cst.SimpleString(f'"{text}"')
    if not keyword:
        return cst.Arg(value)
    return cst.Arg(value, keyword=cst.Name(keyword), equal=_EQUAL)


_EQUAL = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))


def _named(argument: cst.Arg, name: str | None) -> cst.Arg:
    value = argument.value
    if isinstance(value, cst.GeneratorExp) and not value.lpar:
        # A bare generator expression may only stand alone.
        argument = argument.with_changes(value=value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
    if name is None or argument.keyword is not None or argument.star:
        return argument
    return argument.with_changes(keyword=cst.Name(name), equal=_EQUAL)


def _commas(arguments: list[cst.Arg]) -> list[cst.Arg]:
    """Every argument but the last needs its comma; those that the script wrote are kept with their line breaks."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    missing = [isinstance(a.comma, cst.MaybeSentinel) for a in arguments]
    last = len(arguments) - 1
    return [
        a.with_changes(comma=comma) if m and i < last else a
        for i, (a, m) in enumerate(zip(arguments, missing, strict=True))
    ]


def _registrations(analysis: Analysis, sites: list[Site]) -> list[tuple[tuple[int, int], str]]:
    """After which statements a name is registered: an interface's definition, or the import of one that is rebound."""
    called = {s.interface.name for s in sites}
    found = [
        (analysis.lines.start(node), node.name)
        for interface, node in analysis.location.defined
        if interface.name in called
    ]
    scopes = analysis.location.flow.scopes
    names = {s.call.func.id for s in sites if s.kind == "function" and isinstance(s.call.func, ast.Name)}
    assigned = {
        target.id
        for node in ast.walk(analysis.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and scopes.of_node[target].home(target.id) is scopes.module
    }
    for node in analysis.tree.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            # `from m import generate` and later `generate = torch.compile(generate)`.
            if alias.asname is None and alias.name in names & assigned:
                found.append((analysis.lines.start(node), alias.name))
    return found


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)
