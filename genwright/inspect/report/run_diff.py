"""Compare two runs: which calls differ, where, and by how much."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from genwright.errors import UserError
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.records.stored_values import OpaqueValue, load_value
from genwright.inspect.rewrite.line_diff import matching_blocks

_STATISTICS = ("min", "max", "mean", "std")
_EVENTS = ("create", "run", "answer", "window", "server")
_RUN = "{run}"  # stands for a run's own folder in texts


@dataclass(frozen=True)
class Difference:
    """One value that differs; `left` and `right` are the values, `call` the number in the first run, or the second."""

    call: int | None
    line: int | None
    interface: str
    where: str
    left: Any
    right: Any

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        number = f"call {self.call} ({self.interface}): " if self.call else ""
        return f"{place}{number}{self.where}: {_short(self.left)} != {_short(self.right)}"


@dataclass(frozen=True)
class Tolerance:
    """How far two numbers may be apart: at most `absolute`, or `relative` times the larger one."""

    relative: float = 0.0
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("relative", self.relative), ("absolute", self.absolute)):
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"The {name} tolerance must be a number from 0 up, not {value}.")

    def same(self, left: float, right: float) -> bool:
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or math.isclose(left, right, rel_tol=self.relative, abs_tol=self.absolute)

    @property
    def exact(self) -> bool:
        return not self.relative and not self.absolute


def diff_runs(left: StoredRun, right: StoredRun, tolerance: Tolerance | None = None) -> Iterator[Difference]:
    """Every difference in the order of the calls; times, memory, process numbers and the runs' folders do not count."""
    tolerance = tolerance or Tolerance()
    for key in ("status", "exit_code"):
        if left.data.get(key) != right.data.get(key):
            yield Difference(None, None, "", key, left.data.get(key), right.data.get(key))
    first, second = ([c for c in run.calls() if c.event in _EVENTS] for run in (left, right))
    several = any(len({c.process for c in calls}) > 1 for calls in (first, second))
    for one, other in _paired(first, second) if several else _aligned(first, second):
        if one is None or other is None:
            call = one or other
            assert call is not None
            told = ("called", "not called") if one else ("not called", "called")
            yield Difference(call.number, call.line, call.interface, call.event, *told)
        else:
            yield from _compare_calls(one, other, tolerance, (str(left.path), str(right.path)))


def _aligned(left: list[Call], right: list[Call]) -> Iterator[tuple[Call | None, Call | None]]:
    """Pairs of calls that correspond: the same interfaces in the same order, as far as the runs go together."""
    keys = [[f"{c.event} {c.interface}" for c in calls] for calls in (left, right)]
    i = j = 0
    for first, second, size in [*matching_blocks(*keys), (len(left), len(right), 0)]:
        yield from ((call, None) for call in left[i:first])
        yield from ((None, call) for call in right[j:second])
        yield from zip(left[first : first + size], right[second : second + size], strict=True)
        i, j = first + size, second + size


def _paired(left: list[Call], right: list[Call]) -> Iterator[tuple[Call | None, Call | None]]:
    """Pairs of calls of several processes, whose order is by chance: those with the same arguments, then the others."""
    waiting: dict[str, list[Call]] = defaultdict(list)
    for call in right:
        waiting[_asked(call)].append(call)
    pairs = [(call, waiting[_asked(call)].pop(0) if waiting[_asked(call)] else None) for call in left]
    paired = {other.number for _, other in pairs if other is not None}
    yield from ((one, other) for one, other in pairs if other is not None)
    yield from _aligned([one for one, other in pairs if other is None], [c for c in right if c.number not in paired])


def _asked(call: Call) -> str:
    return json.dumps([call.event, call.interface, call.arguments, call.keywords], sort_keys=True)


def _compare_calls(left: Call, right: Call, tolerance: Tolerance, folders: tuple[str, str]) -> Iterator[Difference]:
    def differ(where: str, one: Any, other: Any) -> Difference:
        return Difference(left.number, left.line, left.interface, where, one, other)

    (arguments, keywords), (others, other_keywords) = _alike(left, right)
    for where, one, other in (
        ("arguments", arguments, others),
        ("keywords", keywords, other_keywords),
        ("status", left.status, right.status),
        ("exception", _told(left.exception), _told(right.exception)),
        ("files", _written(left), _written(right)),
    ):
        for place, a, b in _compare(_without(one, folders[0]), _without(other, folders[1]), where, tolerance):
            yield differ(place, a, b)
    found = list(_compare(_without(left.result, folders[0]), _without(right.result, folders[1]), "result", tolerance))
    if found and not tolerance.exact and _close(left, right, tolerance):
        return
    for place, a, b in found:
        yield differ(place, a, b)


def _alike(left: Call, right: Call) -> list[tuple[list[Any], dict[str, Any]]]:
    """Both calls' arguments with equally many positional ones: a record names them where it knows the signature."""
    most = max(len(left.arguments), len(right.arguments))
    told = []
    for call in (left, right):
        names = list(call.keywords)[: most - len(call.arguments)]
        rest = {name: value for name, value in call.keywords.items() if name not in names}
        told.append(([*call.arguments, *(call.keywords[name] for name in names)], rest))
    return told


def _compare(left: Any, right: Any, where: str, tolerance: Tolerance) -> Iterator[tuple[str, Any, Any]]:
    """The places where two summaries differ."""
    if isinstance(left, bool) or isinstance(right, bool) or type(left) is not type(right):
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right))
        if left != right and not (numbers and tolerance.same(left, right)):
            yield where, left, right
    elif isinstance(left, dict):
        if "sha256" in left and "shape" in left:
            yield from _compare_arrays(left, right, where, tolerance)
            return
        for key in [*left, *(k for k in right if k not in left)]:
            yield from _compare(left.get(key), right.get(key), f"{where}.{key}", tolerance)
    elif isinstance(left, list):
        if len(left) != len(right):
            yield f"{where}: length", len(left), len(right)
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from _compare(a, b, f"{where}[{index}]", tolerance)
    elif isinstance(left, float):
        if not tolerance.same(left, right):
            yield where, left, right
    elif left != right and not (isinstance(left, int) and tolerance.same(left, right)):
        yield where, left, right


def _compare_arrays(left: dict, right: dict, where: str, tolerance: Tolerance) -> Iterator[tuple[str, Any, Any]]:
    """By hash; with a tolerance by statistics, which are all that a record keeps of an argument."""
    for key in ("shape", "dtype"):
        if left.get(key) != right.get(key):
            yield f"{where}: {key}", left.get(key), right.get(key)
            return
    if left["sha256"] == right.get("sha256"):
        return
    known = [k for k in _STATISTICS if k in left and k in right]
    near = bool(known) and all(tolerance.same(left[k], right[k]) for k in known)
    if tolerance.exact or not near or left.get("nan", 0) != right.get("nan", 0):
        yield where, left, right


def _close(left: Call, right: Call, tolerance: Tolerance) -> bool:
    """Whether two results that are stored in full agree within the tolerance, number by number."""
    if left.value is None or right.value is None:
        return False
    return _values_close(load_value(left), load_value(right), tolerance)


def _values_close(left: Any, right: Any, tolerance: Tolerance) -> bool:
    if type(left) is not type(right) or isinstance(left, OpaqueValue):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_values_close(left[k], right[k], tolerance) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_values_close, left, right, [tolerance] * len(left)))
    if hasattr(left, "shape") and hasattr(left, "dtype"):
        import numpy

        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        one, other = (numpy.asarray(v.float() if hasattr(v, "float") else v) for v in (left, right))
        larger = numpy.maximum(numpy.abs(one), numpy.abs(other)) if tolerance.relative else 0
        near = numpy.abs(one - other) <= numpy.maximum(tolerance.relative * larger, tolerance.absolute)
        return bool(numpy.all(near | (one == other) | (numpy.isnan(one) & numpy.isnan(other))))
    if isinstance(left, int | float) and not isinstance(left, bool):
        return tolerance.same(left, right)
    return bool(left == right)


def _told(exception: dict[str, Any] | None) -> Any:
    """What an exception says; its traceback names folders and lines of libraries."""
    return {k: exception.get(k) for k in ("type", "message")} if exception else None


def _written(call: Call) -> list[Any]:
    return [{k: f.get(k) for k in ("path", "bytes", "sha256")} for f in call.files if f.get("written")]


def _without(value: Any, folder: str) -> Any:
    """A summary in which the run's own folder has no name."""
    if isinstance(value, str):
        return value.replace(folder, _RUN)
    if isinstance(value, list):
        return [_without(v, folder) for v in value]
    return {k: _without(v, folder) for k, v in value.items()} if isinstance(value, dict) else value


def _short(value: Any) -> str:
    if isinstance(value, dict) and "shape" in value:
        numbers = ", ".join(f"{k} {value[k]}" for k in _STATISTICS if k in value)
        return f"{value.get('dtype')}{value['shape']} ({numbers or str(value.get('sha256'))[:12]})"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
