"""The assertions of a scenario: Python expressions about a run, computed without running any code.

They know the run's `status`, `exit_code`, `seconds`, `output` and `error` (what it printed), `files` (the paths that it
wrote), `findings` (their kinds) and `calls`, with the keys of a call's record as attributes; and the functions
`count(interface)`, `results(interface)` and `arguments(interface)`.
"""

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from genwright.inspect.analysis.interpreter_values import OPERATORS
from genwright.inspect.records.stored_runs import StoredRun

_SHOWN = 200  # characters of a value in a reason
_STEPS = 200_000
_FUNCTIONS = {f.__name__: f for f in (len, any, all, min, max, sum, abs, round, sorted, math.isclose)}


@dataclass(frozen=True)
class Outcome:
    """Whether an assertion holds; `reason` tells why not."""

    assertion: str
    holds: bool
    reason: str = ""


def check_assertions(run: StoredRun, findings: Iterable[str] = ()) -> list[Outcome]:
    """The outcome of each assertion of the run's scenario; `findings` are the kinds of what was found."""
    assertions = (run.data.get("scenario") or {}).get("assertions") or []
    if not assertions:
        return []
    evaluator = _Evaluator(_names(run, list(findings)))
    return [evaluator.check(str(assertion)) for assertion in assertions]


def _names(run: StoredRun, findings: list[str]) -> dict[str, Any]:
    calls = [{**vars(call), "value": None} for call in run.calls()]
    written = [f["path"] for call in calls for f in call["files"] if f.get("written")]
    written += [str(f.get("path")) for f in run.data.get("files") or []]

    def of(interface: str) -> list[dict[str, Any]]:
        named = [c for c in calls if c["event"] in ("create", "run")]
        exact = [c for c in named if c["interface"] == interface]
        return exact or [c for c in named if c["interface"].rpartition(".")[2] == interface]

    return {
        **{key: run.data.get(key) for key in ("status", "exit_code", "seconds")},
        "calls": calls,
        "files": list(dict.fromkeys(written)),
        "findings": findings,
        **{key: run.printed(key) for key in ("output", "error")},
        "count": lambda interface: len(of(interface)),
        "results": lambda interface: [c["result"] for c in of(interface)],
        "arguments": lambda interface: [c["keywords"] | dict(enumerate(c["arguments"])) for c in of(interface)],
        **_FUNCTIONS,
    }


class _RefusedError(Exception):
    pass


class _Evaluator:
    """Computes expressions of names, literals, operators, subscripts, attributes, comprehensions and known calls."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._left = _STEPS

    def check(self, assertion: str) -> Outcome:
        self._left = _STEPS
        try:
            tree = ast.parse(assertion.strip(), mode="eval").body
            holds = bool(self._value(tree, {}))
        except SyntaxError as error:
            return Outcome(assertion, False, f"It is not a Python expression: {error.msg}.")
        except _RefusedError as error:
            return Outcome(assertion, False, str(error))
        except Exception as error:  # a missing key, a text compared with a number
            return Outcome(assertion, False, f"It cannot be computed: {type(error).__name__}: {error}.")
        return Outcome(assertion, holds, "" if holds else self._why(tree))

    def _why(self, tree: ast.expr) -> str:
        """What stood on both sides of a comparison that does not hold."""
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            failing = next(v for v in tree.values if not self._value(v, {}))
            return f"{ast.unparse(failing)} does not hold. {self._why(failing)}"
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            return f"{ast.unparse(tree.operand)} is {_short(self._value(tree.operand, {}))}."
        if not isinstance(tree, ast.Compare):
            return f"It is {_short(self._value(tree, {}))}."
        sides = [tree.left, *tree.comparators]
        told = [f"{ast.unparse(s)} is {_short(self._value(s, {}))}" for s in sides if not isinstance(s, ast.Constant)]
        return "; ".join(told) + "."

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _RefusedError(f"It takes more than {_STEPS:,} steps.")

    def _value(self, node: ast.expr, local: dict[str, Any]) -> Any:
        self._step()
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id in local:
                    return local[node.id]
                if node.id not in self._names:
                    raise _RefusedError(f"There is no {node.id!r}; an assertion knows {', '.join(self._names)}.")
                return self._names[node.id]
            case ast.Attribute():
                return self._value(node.value, local)[node.attr]
            case ast.Subscript():
                return self._value(node.value, local)[self._index(node.slice, local)]
            case ast.List() | ast.Tuple():
                items = [self._value(e, local) for e in node.elts]
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.BoolOp():
                return self._either(node, local)
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, local)
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand, local)
            case ast.BinOp() if type(node.op) in OPERATORS:
                return self._binary(node, local)
            case ast.Compare():
                return self._compare(node, local)
            case ast.IfExp():
                return self._value(node.body if self._value(node.test, local) else node.orelse, local)
            case ast.ListComp() | ast.GeneratorExp():
                return self._comprehension(node, local)
            case ast.Call(func=ast.Name()):
                function = self._value(node.func, local)
                if not callable(function):
                    raise _RefusedError(f"{ast.unparse(node.func)} is no function.")
                keywords = {str(k.arg): self._value(k.value, local) for k in node.keywords}
                return function(*(self._value(a, local) for a in node.args), **keywords)
        raise _RefusedError(f"An assertion cannot have {ast.unparse(node)!r}.")

    def _index(self, node: ast.expr, local: dict[str, Any]) -> Any:
        if isinstance(node, ast.Slice):
            parts = [self._value(p, local) if p else None for p in (node.lower, node.upper, node.step)]
            return slice(*parts)
        return self._value(node, local)

    def _either(self, node: ast.BoolOp, local: dict[str, Any]) -> Any:
        value: Any = None
        for part in node.values:
            value = self._value(part, local)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _binary(self, node: ast.BinOp, local: dict[str, Any]) -> Any:
        left, right = self._value(node.left, local), self._value(node.right, local)
        # A text times a number, or formatted by one, would grow without limit.
        if not isinstance(node.op, ast.Add) and not all(isinstance(v, int | float) for v in (left, right)):
            raise _RefusedError("Only numbers are computed with; texts and lists can be added.")
        return OPERATORS[type(node.op)](left, right)

    def _compare(self, node: ast.Compare, local: dict[str, Any]) -> bool:
        left = self._value(node.left, local)
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            value = self._value(right, local)
            if not OPERATORS[type(comparison)](left, value):
                return False
            left = value
        return True

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, local: dict[str, Any]) -> list[Any]:
        rounds = [dict(local)]
        for clause in node.generators:
            if not isinstance(clause.target, ast.Name):
                raise _RefusedError("A comprehension has one name for its items.")
            rounds = list(self._rounds(clause, clause.target.id, rounds))
        return [self._value(node.elt, scope) for scope in rounds]

    def _rounds(self, clause: ast.comprehension, name: str, outer: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for scope in outer:
            for item in self._value(clause.iter, scope):
                self._step()
                inner = scope | {name: item}
                if all(self._value(test, inner) for test in clause.ifs):
                    yield inner


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
