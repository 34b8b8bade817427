"""Rewrite a script so that it runs unattended and every interface call goes through the executor."""

import ast
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.analyse import Analysis, analyse
from genwright.inspect.analysis.border import no_sites
from genwright.inspect.analysis.complete import complete
from genwright.inspect.analysis.manifest import Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario, literal
from genwright.inspect.analysis.sites import Site
from genwright.inspect.analysis.value_choices import Choice
from genwright.inspect.rewrite.call_edits import call_edits
from genwright.inspect.rewrite.edits import Edits, apply
from genwright.inspect.rewrite.line_diff import matching_blocks, unified_diff
from genwright.inspect.rewrite.prepare import prepare
from genwright.inspect.rewrite.substitute import Substitution, substitute
from genwright.inspect.rewrite.verify import Header, verify


@dataclass(frozen=True)
class Rewrite:
    """A verified rewrite, and what led to it: the script understood as it was, and with the scenario's changes."""

    analysis: Analysis
    prepared: Analysis
    text: str
    samples: Substitution
    overridden: dict[str, str]
    missing: list[str]
    scenario: Scenario
    chosen: list[Choice]
    seconds: float

    @property
    def diff(self) -> str:
        name = self.analysis.script.name
        before, after = _split(self.analysis.source), _split(self.text)
        return "\n".join(line.rstrip("\r\n") for line in unified_diff(before, after, name, f"{name} (rewritten)"))

    @property
    def untouched(self) -> float:
        """The share of the original's lines that are in the rewrite to the letter, in order."""
        before, after = _split(self.analysis.source), _split(self.text)
        return sum(size for _, _, size in matching_blocks(before, after)) / max(len(before), 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "script": str(self.analysis.script),
            **self.analysis.location.to_dict(),
            "missing": self.missing,
            "chosen": [vars(c) for c in self.chosen],
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
    ask: bool = True,
    must_call: bool = False,
) -> Rewrite:
    """Rewrite one script; raises `UserError` in one sentence when it cannot be done or does not verify.

    With `samples`, placeholder paths that the script opens are replaced by sample files. Without `ask`, values that
    the script requires and the scenario lacks are chosen. With `must_call`, a script without a site is refused.
    """
    started = time.perf_counter()
    scenario = scenario or Scenario()
    repository = repository or Repository.around(script)
    if scenario.interface:
        manifest = manifest.only(scenario.interface)
    source = repository.source(script)
    original = analyse(source, script, manifest, repository)
    if must_call and not original.location.sites:
        raise no_sites(repository, script, manifest, original.location)
    scenario, chosen = complete(original, scenario, ask)
    changed, overridden = prepare(original, scenario)
    prepared = analyse(changed, script, manifest, repository) if changed != source else original
    substitution = substitute(prepared, scenario, samples)
    if substitution.text != changed:
        prepared = analyse(substitution.text, script, manifest, repository)
    text = route(prepared, manifest.project, scenario, label, substitution.name)
    missing = original.unattended.missing(scenario)
    seconds = time.perf_counter() - started
    return Rewrite(original, prepared, text, substitution, overridden, missing, scenario, chosen, seconds)


def route(
    analysis: Analysis, project: str, scenario: Scenario, label: str, resources: str = "", sites: bool = True
) -> str:
    """The script with header, registrations and routed calls, verified; without `sites` only made to run unattended."""
    location = analysis.location
    names = itertools.chain(["exe", "inspection_exe"], (f"inspection_exe_{n}" for n in itertools.count(2)))
    exe = next(n for n in names if not analysis.uses(n))
    routed = location.sites if sites else []
    edits = Edits(analysis.text, module_head=_header(analysis, project, scenario, label, resources, exe, routed))
    for site in routed:
        edits.pieces += call_edits(site, exe, analysis.text)
    for statement, name in _registrations(analysis, routed):
        edits.after(statement, f"{exe}.register({name})")
    entry = scenario.entry or analysis.unattended.entry
    if entry and (scenario.entry or not analysis.unattended.has_entry):
        edits.module_tail += f"{entry}\n"
    text = apply(edits, analysis.tree, analysis.script.name)
    edits.pieces.clear()  # they take as much memory as the sites, and the proof needs its own
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
        "scenario": scenario.for_run(),
    }
    shown = ", ".join(f"{key}={literal(value)}" for key, value in given.items() if value)
    lines.append(f"{exe}.setup({shown})")
    lines.append(f"{exe}.unattended()")
    return "\n".join(lines) + "\n"


def _homes(sites: list[Site]) -> dict[str, str]:
    """Where each interface lives: its own module, that of its factory, or that of its class."""
    homes = {s.interface.name: s.home for s in sites if s.home and not s.factory and not s.indirect}
    for site in sites:
        if site.holds is not None:
            homes |= {name: home for name, home in site.holds.items() if home}
    for site in sites:
        if site.factory:
            homes[f"{site.interface.name}.{site.factory}"] = site.home
        for name in site.holds or ([site.interface.name] if site.kind == "method" and not site.factory else []):
            if "." in name and not homes.get(name):
                homes[name] = homes.get(name.partition(".")[0], "")
    return homes


def _registrations(analysis: Analysis, sites: list[Site]) -> list[tuple[ast.stmt, str]]:
    """After which statements a name is registered: an interface's definition, or the import of one that is rebound."""
    called = {name for s in sites for name in (s.interface.name, *(s.holds or ()))}
    found: list[tuple[ast.stmt, str]] = [
        (node, node.name) for interface, node in analysis.location.defined if interface.name in called
    ]
    scopes = analysis.location.flow.scopes
    names = {s.call.func.id for s in sites if s.kind == "function" and isinstance(s.call.func, ast.Name)}
    assigned = {
        target.id
        for node in analysis.location.flow.nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and scopes.of_node[target].home(target.id) is scopes.module
    }
    for node in analysis.tree.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            # `from m import generate` and later `generate = torch.compile(generate)`.
            if alias.asname is None and alias.name in names & assigned:
                found.append((node, alias.name))
    return found


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)
