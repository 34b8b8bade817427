"""Plan a run: from a script, a manifest and a scenario to what its process needs to know."""

import ast
import difflib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.border import draft_for_script, no_sites
from genwright.inspect.analysis.locate import parse
from genwright.inspect.analysis.manifest import Manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.seeds import find_seeds
from genwright.inspect.analysis.sites import Site
from genwright.inspect.analysis.source_files import encoding_of
from genwright.inspect.records.call_site import Range
from genwright.inspect.records.plan_file import Plan, Target
from genwright.inspect.records.secrets import is_secret, redacted_arguments
from genwright.inspect.rewrite.line_diff import matching_blocks
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

_COMPARED = 2000  # pairs of changed lines
_EXECUTORS = {"Inspection.core.executor", "genwright.inspect.executor", "genwright"}


@dataclass(frozen=True)
class RunOptions:
    """How a run is made of a script, beside its manifest and scenario."""

    mode: str = "intercept"  # or rewrite, replay, mock
    label: str = "simulation"
    samples: bool = True
    ask: bool = False
    path: Sequence[Path] = ()  # folders in front of the script's own on its sys.path
    folders: Sequence[Path] = ()  # where the manifests of executors are looked for first


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and the text of the script where it is not the original's."""

    plan: Plan
    text: str | None
    argv: list[str]  # with its secrets, which the plan has not
    seeds: list[dict[str, Any]]
    environment: dict[str, str]
    chosen: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> Plan:
        """Write plan and text to the run's folder, and copy the original, which may change later."""
        plan = self.plan
        if self.text is not None:
            path = folder / "script.py"
            path.write_text(self.text, encoding=encoding_of(self.text), newline="")
            plan = replace(plan, source=str(path))
        plan.write(folder)
        script = Path(plan.script)
        shutil.copyfile(script, folder / f"original{script.suffix}")
        return plan


def plan_run(
    script: Path, manifest: Manifest | None, scenario: Scenario, repository: Repository, options: RunOptions
) -> PlannedRun:
    """Read the script and plan its run; without a manifest one is drafted."""
    source = repository.source(script)
    full, scenario = scenario, _without_secrets(scenario)
    own = _executor_of(parse(source, script.name))
    if own is not None:
        # A script that calls the executor is run as it is.
        made = rewrite(script, Manifest(own[0], ()), scenario, repository, samples=options.samples, ask=True)
        return _planned(made, Manifest(own[0], ()), replace(options, mode="rewrite", label=own[1]), full)
    known = manifest or draft_for_script(repository, script, source)
    known = known.only(scenario.interface) if scenario.interface else known
    made = rewrite(script, known, scenario, repository, options.label, options.samples, options.ask)
    location = made.prepared.location
    if not location.sites and (options.mode == "rewrite" or not location.unresolved):
        raise no_sites(repository, script, known, location)
    if made.missing:
        raise UserError(f"{script.name} needs values that the scenario lacks: {'; '.join(made.missing)}.")
    return _planned(made, known, options, full)


def _without_secrets(scenario: Scenario) -> Scenario:
    """A scenario that may be written down; its environment reaches the run by another way."""
    return replace(scenario, environment={k: v for k, v in scenario.environment.items() if not is_secret(k)})


def _planned(made: Rewrite, manifest: Manifest, options: RunOptions, full: Scenario) -> PlannedRun:
    prepared, scenario = made.prepared, made.scenario
    script = prepared.script.resolve()
    rewritten = options.mode == "rewrite" and bool(manifest.interfaces)
    entry = scenario.entry or prepared.unattended.entry
    tail = f"{entry}\n" if entry and (scenario.entry or not prepared.unattended.has_entry) else ""
    argv = redacted_arguments(scenario.argv)
    text = made.text if rewritten else _with_tail(prepared.source, tail)
    text = text.replace(repr([str(script), *scenario.argv]), repr([str(script), *argv]), int(rewritten))
    changed = rewritten or text != made.analysis.source or script.suffix != ".py"
    folders = [script.parent, prepared.repository.top(script), prepared.repository.root]
    plan = Plan(
        project=manifest.project,
        label=options.label,
        mode=options.mode,
        script=str(script),
        source=str(script),
        argv=argv,
        path=list(dict.fromkeys(map(str, [*options.path, *folders]))),
        rewritten=rewritten,
        package=prepared.package,
        resources=made.samples.name,
        interfaces=_targets(manifest, prepared.location.sites),
        defined=_ranges((i.owner, n) for i, n in prepared.location.defined),
        lines=_ranges((s.interface.name, s.call) for s in prepared.location.sites if not rewritten),
        original=_line_map(text.removesuffix(tail), made) if changed else [],
        files={i.name: list(i.files) for i in manifest.interfaces if i.files},
        answers=scenario.answers,
        overrides=scenario.overrides,
        scenario=scenario.for_run(),
        folders=[str(f) for f in options.folders],
        manifest=manifest.to_dict(),
    )
    return PlannedRun(
        plan,
        text if changed else None,
        scenario.argv,
        find_seeds(prepared.tree),
        prepared.unattended.environment | full.environment,
        [str(c) for c in made.chosen],
    )


def _executor_of(tree: ast.Module) -> tuple[str, str] | None:
    """The name and label of the executor that a script makes itself."""
    imported = any(
        isinstance(n, ast.ImportFrom) and n.module in _EXECUTORS and any(a.name == "Executor" for a in n.names)
        for n in ast.walk(tree)
    )
    for node in ast.walk(tree) if imported else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Executor":
            given = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if given:
                return given[0], given[1] if len(given) > 1 else "pre"
    return None


def _targets(manifest: Manifest, sites: list[Site]) -> list[Target]:
    """Every interface with the modules that it may be imported from: where the script takes it, and its own."""
    targets = []
    for interface in manifest.interfaces:
        own = [s for s in sites if s.interface.name == interface.name or s.interface.name == interface.owner]
        held = [s.holds.get(interface.name, "") for s in sites if s.holds]
        homes = dict.fromkeys([*(s.home for s in own if s.home and not s.factory), *held, interface.module])
        factories = {}
        for key in interface.factories if interface.kind == "class" else ():
            path, bracket, item = key.partition("[")
            module, _, name = path.rpartition(".")
            factories[f"{name}{bracket}{item}"] = module or interface.module
        factories |= {s.factory: s.home for s in own if s.factory and s.home}
        targets.append(Target(interface.name, interface.kind, [h for h in homes if h], factories))
    return targets


def _ranges(found: Any) -> dict[str, list[Range]]:
    ranges: dict[str, list[Range]] = {}
    for name, node in found:
        ranges.setdefault(name, []).append((node.lineno, node.end_lineno))
    return ranges


def _with_tail(source: str, tail: str) -> str:
    return source + ("" if source.endswith(("\n", "\r")) or not tail else "\n") + tail


def _line_map(text: str, made: Rewrite) -> list[tuple[int, int]]:
    """Lines of the text that runs and the lines of the original that they were."""
    before, after = made.analysis.source.splitlines(), text.splitlines()
    pairs: list[tuple[int, int]] = []
    i = j = 0
    for first, second, size in [*matching_blocks(before, after), (len(before), len(after), 0)]:
        pairs += [(j + new + 1, i + old + 1) for old, new in _alike(before[i:first], after[j:second])]
        pairs += [(second + k + 1, first + k + 1) for k in range(size)]
        i, j = first + size, second + size
    return pairs


def _alike(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Which of some changed lines each of the original's became: in order, and as alike as can be."""
    if len(old) * len(new) > _COMPARED:
        return list(zip(range(len(old)), range(len(new) - len(old), len(new)), strict=False))
    best: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])] * (len(new) + 1)
    for i, line in enumerate(old):
        above, best = best, [(0.0, [])]
        for j, other in enumerate(new):
            likeness = difflib.SequenceMatcher(None, line.strip(), other.strip(), autojunk=False).ratio()
            paired = (above[j][0] + likeness, [*above[j][1], (i, j)])
            best.append(max(paired, best[j], above[j + 1], key=lambda found: found[0]))
    return best[-1][1]
