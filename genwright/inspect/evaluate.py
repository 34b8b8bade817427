"""A small interpreter for the part of a script that builds its command line.

It runs no code of the repository: it walks the syntax tree, computes with plain values, follows the repository's own
functions, and drives a real argparse parser, so that defaults are what argparse itself gives.
"""

import argparse
import ast
import contextlib
import itertools
import operator
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.inspect.limits import LARGEST, TooLarge, check_call, check_operation, checked, weight
from genwright.inspect.pure import METHODS, OPERATORS, PURE, Dotted, Parser, Unknown, tolerated
from genwright.inspect.repository import Repository

_STEPS = 20_000  # of one part of a script
_MOST_STEPS = 200_000  # of all
_WORK = 2_000_000  # elements and characters that may be computed with
_SECONDS = 1.0
_DEPTH = 12
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


class _Stop(Exception):
    """Out of steps."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Evaluator:
    """Interprets one script; `parsers` are the argparse parsers it builds, in order."""

    def __init__(self, tree: ast.Module, repository: Repository | None, file: Path | None) -> None:
        self.repository, self.parsers = repository, list[Parser]()
        self._steps, self._depth, self._left, self._work = 0, 0, _MOST_STEPS, _WORK
        self._deadline = time.perf_counter() + _SECONDS
        self._modules: dict[Path, Module] = {}
        self.module = Module(file, {"__name__": "__main__"})
        with contextlib.suppress(_Stop, _Return):
            self._block(tree.body, self.module.names, self.module)

    def call_remaining(self, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> None:
        """Interpret functions that build a parser but that the script's top level did not reach."""
        for node in functions:
            if not self.parsers:
                self._begin()
                with contextlib.suppress(_Stop):
                    self._invoke(Function(node, self.module), [], {})

    def value(self, node: ast.expr) -> Any:
        """An expression's value in the script's global names."""
        self._begin()
        with contextlib.suppress(_Stop):
            return self._value(node, {}, self.module)
        return Unknown(node)

    def _begin(self) -> None:
        """Another part of the script: it has its own steps, within those of all."""
        self._left -= self._steps
        self._steps = 0
        self._deadline = max(self._deadline, time.perf_counter() + _SECONDS / 10)

    def _step(self) -> None:
        self._steps += 1
        late = self._steps % 64 == 0 and time.perf_counter() > self._deadline
        if self._steps > min(_STEPS, self._left) or self._work < 0 or late:
            raise _Stop

    def _block(self, body: Sequence[ast.stmt], names: dict[str, Any], module: Module) -> None:
        for statement in body:
            self._step()
            self._statement(statement, names, module)

    def _statement(self, node: ast.stmt, names: dict[str, Any], module: Module) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names[node.name] = Function(node, module)
            case ast.ClassDef():
                names[node.name] = Unknown(node.name)
            case ast.Import():
                for alias in node.names:
                    dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or dotted] = Dotted(dotted)
            case ast.ImportFrom():
                for alias in node.names:
                    names[alias.asname or alias.name] = self._imported(node, alias.name, module)
            case ast.Assign():
                value = self._value(node.value, names, module)
                for target in node.targets:
                    self._store(target, value, names, module)
            case ast.AnnAssign():
                if node.value is not None:
                    self._store(node.target, self._value(node.value, names, module), names, module)
            case ast.AugAssign():
                self._store(node.target, Unknown(node.target), names, module)
            case ast.Expr():
                self._value(node.value, names, module)
            case ast.If():
                self._branch(node, names, module)
            case ast.For():
                self._loop(node, names, module)
            case ast.With() | ast.AsyncWith():
                self._block(node.body, names, module)
            case ast.Try():
                self._block([*node.body, *node.orelse, *node.finalbody], names, module)
            case ast.Return():
                raise _Return(self._value(node.value, names, module) if node.value else None)

    def _branch(self, node: ast.If, names: dict[str, Any], module: Module) -> None:
        test = self._value(node.test, names, module)
        if isinstance(test, Unknown):
            # Either may run; a parser may be built in both.
            for part in (node.body, node.orelse):
                try:
                    self._block(part, names, module)
                except _Return:
                    continue
        else:
            self._block(node.body if test else node.orelse, names, module)

    def _loop(self, node: ast.For, names: dict[str, Any], module: Module) -> None:
        values = self._value(node.iter, names, module)
        if isinstance(values, Unknown) or not hasattr(values, "__iter__"):
            return
        for value in list(itertools.islice(values, LARGEST)):
            self._store(node.target, value, names, module)
            self._block(node.body, names, module)

    def _store(self, target: ast.expr, value: Any, names: dict[str, Any], module: Module) -> None:
        match target:
            case ast.Name():
                names[target.id] = value
            case ast.Tuple() | ast.List():
                known = isinstance(value, list | tuple) and len(value) == len(target.elts)
                for index, element in enumerate(target.elts):
                    self._store(element, value[index] if known else Unknown(element), names, module)
            case ast.Subscript():
                container = self._value(target.value, names, module)
                key = self._value(target.slice, names, module)
                if isinstance(container, dict) and not isinstance(key, Unknown):
                    with contextlib.suppress(TooLarge):
                        self._work -= checked(weight(container) + weight(value))
                        container[key] = value

    def _value(self, node: ast.expr, names: dict[str, Any], module: Module) -> Any:
        self._step()
        try:
            value = self._compute(node, names, module)
            if not isinstance(node, ast.Name | ast.Attribute | ast.Constant):
                self._work -= checked(weight(value))
            return value
        except (_Stop, _Return):
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
                parts = [p.value if isinstance(p, ast.FormattedValue) else p for p in node.values]
                if any(isinstance(p, ast.FormattedValue) and p.format_spec for p in node.values):
                    raise ValueError("a format")
                return "".join(str(v) for v in known(*parts))
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

    def _invoke(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if self._depth > _DEPTH:
            return Unknown("a deep call")
        parameters = function.node.args
        plain = [*parameters.posonlyargs, *parameters.args]
        names: dict[str, Any] = {a.arg: Unknown(a.arg) for a in [*plain, *parameters.kwonlyargs]}
        pairs = list(zip(reversed(plain), reversed(parameters.defaults), strict=False))
        pairs += [(a, d) for a, d in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if d]
        names |= {a.arg: self._value(d, function.module.names, function.module) for a, d in pairs}
        names |= {a.arg: v for a, v in zip(plain, arguments, strict=False)}
        names |= keywords
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self._value(function.node.body, names, function.module)
            self._block(function.node.body, names, function.module)
        except _Return as finished:
            return finished.value
        finally:
            self._depth -= 1
        return None

    def _imported(self, node: ast.ImportFrom, name: str, module: Module) -> Any:
        base = node.module or ""
        if node.level and self.repository is not None and module.file is not None:
            package = self.repository.package(module.file).split(".")
            package = package[: len(package) - (node.level - 1)]
            base = ".".join([*package, *([node.module] if node.module else [])])
        return Dotted(f"{base}.{name}")

    def _repository_function(self, dotted: str, module: Module) -> Any:
        """A function of another file of the repository, whose constants and definitions are interpreted first."""
        owner, _, name = dotted.rpartition(".")
        file = self.repository.find(owner, module.file) if self.repository and owner else None
        if file is None:
            return Unknown(dotted)
        if file not in self._modules:
            self._modules[file] = Module(file)
            tree = self.repository.parse(file) if self.repository else None
            kept = (ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
            with contextlib.suppress(_Stop, _Return):
                body = [n for n in tree.body if isinstance(n, kept)] if tree else []
                self._block(body, self._modules[file].names, self._modules[file])
        return self._modules[file].names.get(name, Unknown(dotted))
