"""A small interpreter for the part of a script that builds its command line.

It runs no code of the repository: it walks the syntax tree, computes with plain values, follows the repository's own
functions, and drives a real argparse parser, so that defaults are what argparse itself gives.
"""

import ast
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.interpreter_expressions import (
    ExpressionInterpreter,
    Function,
    Module,
    OutOfSteps,
    Returned,
)
from genwright.inspect.analysis.interpreter_limits import (
    LARGEST,
    TooLarge,
    checked,
    weight,
)
from genwright.inspect.analysis.interpreter_values import Dotted, Unknown
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.syntax import defaults, imported_module

_DEPTH = 12


class CliInterpreter(ExpressionInterpreter):
    """Interprets one script; `parsers` are the argparse parsers it builds, in order."""

    def __init__(self, tree: ast.Module, repository: Repository | None, file: Path | None) -> None:
        super().__init__()
        self.repository, self._depth = repository, 0
        self._modules: dict[Path, Module] = {}
        self.module = Module(file, {"__name__": "__main__"})
        with contextlib.suppress(OutOfSteps, Returned):
            self._block(tree.body, self.module.names, self.module)

    def call_remaining(self, functions: list[ast.FunctionDef]) -> None:
        """Interpret functions that build a parser but that the script's top level did not reach."""
        for node in functions:
            if not self.parsers:
                self._begin()
                with contextlib.suppress(OutOfSteps):
                    self._invoke(Function(node, self.module), [], {})

    def value(self, node: ast.expr) -> Any:
        """An expression's value in the script's global names."""
        self._begin()
        with contextlib.suppress(OutOfSteps):
            return self._value(node, {}, self.module)
        return Unknown(node)

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
                raise Returned(self._value(node.value, names, module) if node.value else None)

    def _branch(self, node: ast.If, names: dict[str, Any], module: Module) -> None:
        test = self._value(node.test, names, module)
        if isinstance(test, Unknown):
            # Either may run; a parser may be built in both.
            for part in (node.body, node.orelse):
                try:
                    self._block(part, names, module)
                except Returned:
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

    def _invoke(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if self._depth > _DEPTH:
            return Unknown("a deep call")
        parameters = function.node.args
        plain = [*parameters.posonlyargs, *parameters.args]
        names: dict[str, Any] = {a.arg: Unknown(a.arg) for a in [*plain, *parameters.kwonlyargs]}
        module = function.module
        names |= {a.arg: self._value(d, module.names, module) for a, d in defaults(parameters)}
        names |= {a.arg: v for a, v in zip(plain, arguments, strict=False)}
        names |= keywords
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self._value(function.node.body, names, function.module)
            self._block(function.node.body, names, function.module)
        except Returned as finished:
            return finished.value
        finally:
            self._depth -= 1
        return None

    def _imported(self, node: ast.ImportFrom, name: str, module: Module) -> Any:
        package = self.repository.package(module.file) if self.repository and module.file else ""
        return Dotted(f"{imported_module(node, package)}.{name}")

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
            with contextlib.suppress(OutOfSteps, Returned):
                body = [n for n in tree.body if isinstance(n, kept)] if tree else []
                self._block(body, self._modules[file].names, self._modules[file])
        return self._modules[file].names.get(name, Unknown(dotted))
