"""The report of a run: one HTML page that holds everything, escapes everything and loads nothing."""

import base64
import hashlib
import itertools
import json
import re
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import jinja2

from genwright.errors import UserError
from genwright.inspect.records.script_source import original_source
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.report.assertions import Outcome
from genwright.inspect.report.findings import Finding
from genwright.inspect.report.pictures import call_pictures, run_pictures

_TEMPLATE = Path(__file__).with_name("run_report.html")
_MOST_CALLS = 1000
_MOST_BARS = 5000
_MOST_PICTURES = 100
_VALUE = 4000  # characters
_PRINTED = 20_000
_AXIS = 180  # of a width of 1000
# Control characters, and those that change the direction of what follows, as a hostile script might.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_FACTS = (
    *("mode", "command", "commit", "python", "platform", "started", "seconds", "exit_code", "limit", "unenforced"),
    *("seeds", "answers", "set", "scenario"),
)


def report(
    run: StoredRun, findings: list[Finding], outcomes: list[Outcome], commentator: str = "", commentary: str = ""
) -> str:
    """The page, with a commentator's name and prose if there is one."""
    calls = list(run.calls())
    shown = calls[:_MOST_CALLS]
    text = _TEMPLATE.read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"visible": _visible, "json": _json, "duration": _duration}
    notes: dict[int, list[str]] = defaultdict(list)
    for finding in findings:
        if finding.line:
            notes[finding.line].append(finding.kind)
    page = environment.from_string(text).render(
        style_hash=base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode(),
        run=run,
        facts=[
            (k.replace("_", " "), _fact(k, run.data[k])) for k in _FACTS if run.data.get(k) not in (None, "", [], {})
        ],
        commentator=commentator,
        commentary=commentary,
        outcomes=outcomes,
        findings=findings,
        notes=notes,
        calls=shown,
        count=len(calls),
        shown_numbers={c.number for c in shown},
        sites=Counter(c.line for c in calls if c.line and c.event in ("create", "run") and _in_script(run, c)),
        lines=_lines(run),
        pictures=[*itertools.islice((p for c in shown for p in call_pictures(c)), _MOST_PICTURES), *run_pictures(run)],
        printed=[(n, t) for n in ("output", "error") if (t := run.printed(n, _PRINTED))],
        **_time_line(calls[:_MOST_BARS]),
    )
    return page + "\n"


def _time_line(calls: list[Call]) -> dict[str, Any]:
    """A bar for each call, in a row for each interface and process."""
    timed = [c for c in calls if c.started is not None and c.event in ("create", "run")]
    start = min((c.started or 0 for c in timed), default=0.0)
    end = max(((c.started or 0) + (c.seconds or 0) for c in timed), default=0.0)
    several = len({c.process for c in timed}) > 1
    span = max(end - start, 1e-6)
    rows: dict[str, int] = {}
    bars = []
    for call in timed:
        row = rows.setdefault(f"{call.interface} ({call.process})" if several else call.interface, len(rows))
        x = _AXIS + (1000 - _AXIS) * ((call.started or 0) - start) / span
        width = max(2.0, (1000 - _AXIS) * (call.seconds or 0) / span)
        title = f"call {call.number}: {call.interface}, {_duration(call.seconds or 0)}"
        raised = call.status == "raised"
        x = min(x, 1000 - width)
        bars.append(
            {"number": call.number, "row": row, "x": round(x, 2), "width": round(width, 2), "title": title}
            | {"raised": raised}
        )
    names = [name if len(name) < 27 else f"{name[:25]}…" for name in rows]
    return {"rows": names, "bars": bars, "axis": _AXIS, "span": f"{span:.3g}"}


def _in_script(run: StoredRun, call: Call) -> bool:
    return not call.file or Path(call.file).name == Path(str(run.data.get("script"))).name


def _lines(run: StoredRun) -> list[str]:
    try:
        return original_source(run).splitlines()
    except UserError:
        return []


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _fact(key: str, value: Any) -> str:
    if key == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) and len(value) < 80 else text
    return _visible(text if len(text) <= _VALUE else f"{text[:_VALUE]}\n... ({len(text) - _VALUE:,} characters more)")


def _visible(value: Any) -> str:
    """A text whose hidden characters are written out; the template escapes the rest."""
    return _HIDDEN.sub(lambda match: match.group().encode("unicode_escape").decode(), str(value))
