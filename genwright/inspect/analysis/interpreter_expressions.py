"""The expressions of the interpreter of command lines: plain values, pure functions and a real argparse parser."""

import argparse
import ast
import itertools
import operator
import pathlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.interpreter_limits import (
    LARGEST,
    TooLarge,
    check_call,
    check_operation,
    checked,
    weight,
)
from genwright.inspect.analysis.interpreter_values import METHODS, OPERATORS, PURE, Dotted, Parser, Unknown, tolerated

_STEPS = 20_000  # of one part of a script
_MOST_STEPS = 200_000  # of all
_WORK = 2_000_000  # elements and characters that may be computed with
_SECONDS = 1.0
_UNARY: dict[type, Any] = {ast.USub: operator.neg, ast.Not: operator.not_, ast.UAdd: operator.pos}
# Containers may hold what is not known.
_HOLDERS = ("update", "append", "setdefault", "set_defaults")


@dataclass(eq=False)
class Function:
    """A function of the script or its repository, with the module it sees."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: "Module"

    def __call__(self, value: str) -> str:
        return value


@dataclass(eq=False)
class Module:
    """A module's global names as far as they could be computed, and its imports by dotted name."""

    file: Path | None
    names: dict[str, Any] = field(default_factory=dict)


class OutOfSteps(Exception):
    """Out of steps."""


class Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class ExpressionInterpreter(ABC):
    """Computes expressions; what only running the script would tell is Unknown."""

    def __init__(self) -> None:
        self.parsers = list[Parser]()
        self._steps, self._left, self._work = 0, _MOST_STEPS, _WORK
        self._deadline = time.perf_counter() + _SECONDS

    @abstractmethod
    def _store(self, target: ast.expr, value: Any, names: dict[str, Any], module: Module) -> None: ...

    @abstractmethod
    def _invoke(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any: ...

    @abstractmethod
    def _repository_function(self, dotted: str, module: Module) -> Any: ...

    def _begin(self) -> None:
        """Another part of the script: it has its own steps, within those of all."""
        self._left -= self._steps
        self._steps = 0
        self._deadline = max(self._deadline, time.perf_counter() + _SECONDS / 10)

    def _step(self) -> None:
        self._steps += 1
        late = self._steps % 64 == 0 and time.perf_counter() > self._deadline
        if self._steps > min(_STEPS, self._left) or self._work < 0 or late:
            raise OutOfSteps

    def _value(self, node: ast.expr, names: dict[str, Any], module: Module) -> Any:
        self._step()
        try:
            value = self._compute(node, names, module)
            if not isinstance(node, ast.Name | ast.Attribute | ast.Constant):
                self._work -= checked(weight(value))
            return value
        except (OutOfSteps, Returned):
            raise
        except TooLarge:
            self._work -= LARGEST
            return Unknown(node)
        except Exception:  # whatever real Python would have raised here, the value is not known
            return Unknown(node)

    def _compute(self, node: ast.expr, names: dict[str, Any], module: Module) -> Any:
        def known(*parts: ast.expr) -> list[Any]:
            values = [self._value(p, names, module) for p in parts]
            if any(isinstance(v, Unknown) for v in values):
                raise ValueError("unknown")
            return values

        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node.id, names, module)
            case ast.Attribute():
                return self._attribute(self._value(node.value, names, module), node)
            case ast.Call():
                return self._call(node, names, module)
            case ast.List():
                return [self._value(e, names, module) for e in node.elts]
            case ast.Tuple():
                return tuple(self._value(e, names, module) for e in node.elts)
            case ast.Set():
                return set(known(*node.elts))
            case ast.Dict():
                result: dict[Any, Any] = {}
                for key, value in zip(node.keys, node.values, strict=True):
                    held = self._value(value, names, module)
                    result |= held if key is None else {known(key)[0]: held}
                return result
            case ast.BinOp():
                left, right = known(node.left, node.right)
                self._work -= check_operation(type(node.op), left, right)
                return OPERATORS[type(node.op)](left, right)
            case ast.UnaryOp():
                (operand,) = known(node.operand)
                return _UNARY[type(node.op)](operand)
            case ast.BoolOp():
                for part in node.values:
                    (value,) = known(part)
                    if bool(value) == isinstance(node.op, ast.Or):
                        break
                return value
            case ast.Compare():
                values = known(node.left, *node.comparators)
                pairs = zip(node.ops, values, values[1:], strict=False)
                return all(OPERATORS[type(op)](a, b) for op, a, b in pairs)
            case ast.IfExp():
                (test,) = known(node.test)
                return self._value(node.body if test else node.orelse, names, module)
            case ast.Subscript():
                container, key = known(node.value, node.slice)
                return container[key]
            case ast.JoinedStr():
                return "".join(str(v) for v in known(*_parts(node)))
            case ast.ListComp() | ast.GeneratorExp():
                return self._comprehension(node, names, module)
            case ast.Lambda():
                return Function(node, module)
        raise ValueError("not computed")

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, names: dict[str, Any], module: Module) -> list[Any]:
        (generator,) = node.generators
        inner, result = dict(names), []
        for value in list(itertools.islice(self._value(generator.iter, names, module), LARGEST)):
            self._store(generator.target, value, inner, module)
            if all(self._value(test, inner, module) is True for test in generator.ifs):
                result.append(self._value(node.elt, inner, module))
        return result

    def _name(self, name: str, names: dict[str, Any], module: Module) -> Any:
        for scope in (names, module.names):
            if name in scope:
                value = scope[name]
                return PURE.get(value.text, value) if isinstance(value, Dotted) else value
        return PURE.get(f"builtins.{name}", Unknown(name))

    def _attribute(self, owner: Any, node: ast.Attribute) -> Any:
        if isinstance(owner, Dotted):
            dotted = f"{owner.text}.{node.attr}"
            return PURE.get(dotted, Dotted(dotted))
        for kind, methods in METHODS.items():
            if isinstance(owner, kind) and node.attr in methods:
                return getattr(owner, node.attr)
        if isinstance(owner, pathlib.PurePath) and node.attr in ("parent", "name", "stem", "suffix", "parts"):
            return getattr(owner, node.attr)
        if isinstance(owner, Parser) and node.attr in ("parse_args", "parse_known_args", "parse_intermixed_args"):
            owner.parsed = True
        return Unknown(node)

    def _call(self, node: ast.Call, names: dict[str, Any], module: Module) -> Any:
        function = self._value(node.func, names, module)
        arguments: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                arguments += list(self._value(argument.value, names, module))
            else:
                arguments.append(self._value(argument, names, module))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, names, module)
            keywords |= value if keyword.arg is None else {keyword.arg: value}
        if isinstance(function, Dotted):
            function = self._repository_function(function.text, module)
        if isinstance(function, Function):
            return self._invoke(function, arguments, keywords)
        if isinstance(function, Unknown) or not callable(function):
            return Unknown(node)
        if getattr(function, "__name__", "") == "add_argument":
            keywords = tolerated(keywords)
        elif function is Parser or isinstance(getattr(function, "__self__", None), argparse._SubParsersAction):
            keywords = {
                k: v for k, v in keywords.items() if not isinstance(v, Unknown) and k not in ("parents", "usage")
            }
        elif any(isinstance(v, Unknown) for v in [*arguments, *keywords.values()]) and not (
            function in (dict, isinstance) or getattr(function, "__name__", "") in _HOLDERS
        ):
            return Unknown(node)
        self._work -= check_call(function, arguments, keywords)
        made = function(*arguments, **keywords)
        if isinstance(made, Parser) and function is Parser:
            self.parsers.append(made)
        return made


def _parts(text: ast.JoinedStr) -> list[ast.expr]:
    """The expressions of an f-string, where none has a format."""
    if any(isinstance(p, ast.FormattedValue) and p.format_spec for p in text.values):
        raise ValueError("a format")
    return [p.value if isinstance(p, ast.FormattedValue) else p for p in text.values]
