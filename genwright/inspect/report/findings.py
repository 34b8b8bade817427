"""Findings: what a run's records and its script's source show that its author should know, each with its line."""

import ast
import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.arguments import counted
from genwright.errors import UserError
from genwright.inspect.records.script_source import original_source
from genwright.inspect.records.stored_runs import Call, StoredRun, stored_runs
from genwright.inspect.report.script_findings import Source, hiding_handlers, unseeded_draws, unused_arguments

_GROWTH = 16 << 20  # bytes of memory
_SHARE = 1.1  # of the memory before
_CALLS = 6  # that a growth is judged by
_SLOWER = 1.5
_SECONDS = 0.05
# Where libraries keep what they can make again: `~/.cache`, `~/.triton/cache`, `~/.nv/ComputeCache`.
_CACHE = re.compile(r"/\.([^/]+/)?[^/]*cache/", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """One thing to look at; `line` is of the script, `call` the number of the call that shows it."""

    kind: str
    line: int | None
    message: str
    call: int | None = None

    def __str__(self) -> str:
        return f"{f'line {self.line}: ' if self.line else ''}{self.kind}: {self.message}"


def find(run: StoredRun, earlier: list[StoredRun] | None = None) -> list[Finding]:
    """All findings of a run, by line; `earlier` are runs to compare times with, by default those beside it."""
    calls = list(run.calls())
    crossings = [c for c in calls if c.event in ("create", "run")]
    try:
        source = Source.read(original_source(run))
    except UserError:
        source = None  # the script is gone, or does not parse; the records tell the rest
    found = [*_not_a_number(crossings), *_memory_growth(crossings), *_outside(run, calls, source)]
    found += _slower(run, crossings, _beside(run) if earlier is None else earlier)
    if source is not None:
        found += (Finding("unseeded randomness", line, text) for line, text in unseeded_draws(source))
        found += (Finding("argument never used", line, text) for line, text in unused_arguments(source))
        found += _swallowed(run, crossings, source)
    return sorted(found, key=lambda f: (f.line or 0, f.kind, f.call or 0))


def _not_a_number(calls: list[Call]) -> Iterator[Finding]:
    for call in calls:
        for place, value in (("arguments", [call.arguments, call.keywords]), ("result", call.result)):
            count = _nans(value)
            if count:
                text = f"the {place} of {call.interface} {'have' if place == 'arguments' else 'has'} {count} NaN"
                yield Finding("NaN", call.line, text, call.number)
                break  # what goes in comes out


def _nans(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_nans, value))
    if not isinstance(value, dict):
        return 0
    if value.get("type") == "float":
        return int(value.get("value") == "nan")
    own = value["nan"] if "shape" in value and isinstance(value.get("nan"), int) else 0
    return own + sum(_nans(v) for v in value.values())


def _memory_growth(calls: list[Call]) -> Iterator[Finding]:
    """Peak memory that goes on rising after the first quarter of an interface's calls, in which buffers are made."""
    for interface, own in _by_interface(calls).items():
        peaks = [c.peak_memory for c in own if c.peak_memory is not None]
        if len(peaks) < _CALLS:
            continue
        settled = peaks[len(peaks) // 4 :]
        grown = settled[-1] - settled[0]
        rises = sum(b > a for a, b in itertools.pairwise(settled))
        if grown > _GROWTH and settled[-1] > _SHARE * settled[0] and rises >= (len(settled) - 1) / 2:
            text = f"{interface} peaks at {grown / 2**20:.0f} MiB more after {len(settled)} calls, and goes on growing"
            yield Finding("memory growth", own[-1].line, text, own[-1].number)


def _outside(run: StoredRun, calls: list[Call], source: Source | None) -> Iterator[Finding]:
    told = set()
    for call in calls:
        for file in call.files:
            path = str(file.get("path"))
            if file.get("written") and path not in told and not _inside(path, run.path):
                told.add(path)
                text = f"{call.interface} writes {path}, outside of the run's folder"
                yield Finding("file written outside", call.line, text, call.number)
    for file in run.data.get("files") or []:
        path = str(file.get("path"))
        if not file.get("outside") or path in told:
            continue
        line = source.line_that_names(path) if source else None
        if line or not _CACHE.search(path):
            text = f"the script writes {path}, outside of the run's folder"
            yield Finding("file written outside", line, text)


def _inside(path: str, folder: Path) -> bool:
    return (folder / path).resolve().is_relative_to(folder.resolve())


def _slower(run: StoredRun, calls: list[Call], earlier: list[StoredRun]) -> Iterator[Finding]:
    """The median time of an interface's calls beside that of the earlier runs' calls."""
    before: dict[str, list[float]] = defaultdict(list)
    for other in earlier:
        for call in other.calls():
            if call.event in ("create", "run") and call.status == "returned" and call.seconds is not None:
                before[call.interface].append(call.seconds)
    for interface, own in _by_interface(calls).items():
        times = [c.seconds for c in own if c.seconds is not None and c.status == "returned"]
        if not times or not before[interface]:
            continue
        now, then = statistics.median(times), statistics.median(before[interface])
        if now > _SLOWER * then and now - then > _SECONDS:
            runs = counted(len(earlier), "earlier run")
            text = f"a call of {interface} takes {now:.3g} s, and took {then:.3g} s in {runs}"
            slowest = max(own, key=lambda c: c.seconds or 0)
            yield Finding("slower than before", slowest.line, text, slowest.number)


def _beside(run: StoredRun) -> list[StoredRun]:
    """The runs of the same script with the same command line that began before and came to their end."""

    def same(other: StoredRun) -> bool:
        keys = ("name", "script", "argv", "mode")
        began = str(other.data.get("started", "")) < str(run.data.get("started", ""))
        equal = all(other.data.get(k) == run.data.get(k) for k in keys)
        return began and equal and other.data.get("status") == "ended" and other.path != run.path

    if run.data.get("mode") in ("replay", "mock"):
        return []
    return [other for other in stored_runs(run.path.parent.parent) if same(other)][-5:]


def _swallowed(run: StoredRun, calls: list[Call], source: Source) -> Iterator[Finding]:
    """Handlers around interface calls that hide what went wrong; those that did so in this run name the call."""
    lines = {c.line for c in calls if c.line is not None}
    raised = [c for c in calls if c.status == "raised" and c.exception and c.line is not None]
    for handler, first, last in hiding_handlers(source):
        if not any(first <= line <= last for line in lines if line):
            continue
        hidden = next((c for c in raised if first <= (c.line or 0) <= last and _catches(handler, c)), None)
        caught = f"`except {ast.unparse(handler.type)}`" if handler.type else "`except:`"
        if hidden is not None and hidden.exception is not None and run.data.get("status") == "ended":
            error = f"{hidden.exception.get('type')}: {hidden.exception.get('message')}"
            text = f"{caught} hid that {hidden.interface} in line {hidden.line} failed ({error})"
            yield Finding("swallowed exception", handler.lineno, text, hidden.number)
        elif hidden is None and _is_broad(handler):
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            text = f"{caught} would hide any failure of the calls in {where}"
            yield Finding("swallowed exception", handler.lineno, text)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    names = re.findall(r"\w+", ast.unparse(handler.type)) if handler.type else ["BaseException"]
    return bool({"Exception", "BaseException"} & set(names))


def _catches(handler: ast.ExceptHandler, call: Call) -> bool:
    """By name; a class that the script catches by a base of its own is taken as caught."""
    name = str((call.exception or {}).get("type")).rpartition(".")[2]
    return _is_broad(handler) or name in re.findall(r"\w+", ast.unparse(handler.type) if handler.type else "")


def _by_interface(calls: list[Call]) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.interface].append(call)
    return found
