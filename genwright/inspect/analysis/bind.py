"""Signatures, and a call's arguments bound to them."""

import ast
import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from genwright.errors import UserError

_KINDS = {
    "posonlyargs": inspect.Parameter.POSITIONAL_ONLY,
    "args": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "kwonlyargs": inspect.Parameter.KEYWORD_ONLY,
}

_FILES = frozenset(
    {"path", "paths", "file", "files", "filename", "filepath", "dir", "directory", "folder", "checkpoint", "ckpt"}
)
_STARS: dict[inspect._ParameterKind, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def is_file_name(name: str) -> bool:
    """Whether a parameter's name says that it takes a file or folder."""
    return not _FILES.isdisjoint(name.lower().split("_"))


@dataclass(frozen=True)
class Parameter:
    """One parameter; its default and annotation are source text."""

    name: str
    kind: inspect._ParameterKind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    default: str | None = None
    annotation: str | None = None

    @property
    def required(self) -> bool:
        return self.default is None and self.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )

    @property
    def is_file(self) -> bool:
        return is_file_name(self.name) or "Path" in (self.annotation or "")


@dataclass(frozen=True)
class Signature:
    """What a callee takes, without `self`; written and read as Python writes it."""

    parameters: tuple[Parameter, ...]
    returns: str | None = None

    @classmethod
    def of(cls, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, bound: bool = False) -> Self:
        """The signature of a definition; `bound` drops the first parameter, as a method's caller sees it."""
        arguments = function.args
        plain = [("posonlyargs", a) for a in arguments.posonlyargs] + [("args", a) for a in arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
        parameters = [_parameter(a, _KINDS[k], d) for (k, a), d in zip(plain, defaults, strict=True)]
        if bound and parameters:
            parameters = parameters[1:]
        if arguments.vararg:
            parameters.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None))
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        parameters += [_parameter(a, _KINDS["kwonlyargs"], d) for a, d in pairs]
        if arguments.kwarg:
            parameters.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None))
        returns = getattr(function, "returns", None)
        return cls(tuple(parameters), ast.unparse(returns) if returns else None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `(a, b=1, *, c) -> T`."""
        try:
            (function,) = ast.parse(f"def _{text}: ...").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"The signature {text!r} is not Python; write it as `(a, b=1, *, c) -> T`.") from error
        assert isinstance(function, ast.FunctionDef)
        return cls.of(function)

    def __str__(self) -> str:
        parts: list[str] = []
        kinds = [p.kind for p in self.parameters]
        for index, parameter in enumerate(self.parameters):
            star = _STARS.get(parameter.kind, "")
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not (
                {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL} & set(kinds[:index])
            ):
                parts.append("*")
            text = star + parameter.name
            if parameter.annotation:
                text += f": {parameter.annotation}"
            if parameter.default is not None:
                text += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
            parts.append(text)
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and (
                index + 1 == len(kinds) or kinds[index + 1] is not inspect.Parameter.POSITIONAL_ONLY
            ):
                parts.append("/")
        return f"({', '.join(parts)})" + (f" -> {self.returns}" if self.returns else "")

    @cached_property
    def python(self) -> inspect.Signature:
        """The same as Python's own signature; defaults are source text."""
        return inspect.Signature(
            [
                inspect.Parameter(p.name, p.kind, default=inspect.Parameter.empty if p.default is None else p.default)
                for p in self.parameters
            ]
        )

    @property
    def positional(self) -> tuple[Parameter, ...]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p for p in self.parameters if p.kind in kinds)

    def has(self, kind: inspect._ParameterKind) -> bool:
        return any(p.kind is kind for p in self.parameters)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as the script writes it: the parameter it reaches (None when only running tells) and its source."""

    parameter: str | None
    value: str
    star: str = ""

    def __str__(self) -> str:
        return f"{self.parameter}={self.value}" if self.parameter and not self.star else f"{self.star}{self.value}"


@dataclass(frozen=True, slots=True)
class Binding:
    """A call's arguments in the order written, and what is wrong with them (empty when the call fits)."""

    arguments: tuple[Argument, ...]
    problem: str = ""


def bind(call: ast.Call, signature: Signature | None) -> Binding:
    """Bind each argument to its parameter; after a star argument positions are unknown until the script runs."""
    arguments: list[Argument] = []
    if signature is None:
        arguments += [_positional(None, a) for a in call.args]
        arguments += [_keyword(k) for k in call.keywords]
        return Binding(tuple(arguments))
    positional = list(signature.positional)
    names = {p.name for p in signature.parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    taken: set[str] = set()
    starred, problem = False, ""
    for argument in call.args:
        parameter = None
        if isinstance(argument, ast.Starred):
            starred = True
        elif not starred and positional:
            parameter = positional.pop(0).name
            taken.add(parameter)
        elif not starred and not signature.has(inspect.Parameter.VAR_POSITIONAL):
            problem = f"takes {len(signature.positional)} positional arguments, the call has {len(call.args)}"
        arguments.append(_positional(parameter, argument))
    for keyword in call.keywords:
        arguments.append(_keyword(keyword))
        if keyword.arg is None:
            starred = True
        elif keyword.arg in taken & names:
            problem = f"gets {keyword.arg!r} twice"
        elif keyword.arg not in names and not signature.has(inspect.Parameter.VAR_KEYWORD):
            problem = f"has no parameter {keyword.arg!r}"
        elif keyword.arg in names:
            taken.add(keyword.arg)
    missing = [p.name for p in signature.parameters if p.required and p.name not in taken]
    if missing and not starred and not problem:
        problem = f"lacks {', '.join(missing)}"
    return Binding(tuple(arguments), problem)


def may_name(signature: Signature | None, call: ast.Call, binding: Binding) -> list[str | None]:
    """The keyword each positional argument can be given without changing the call, or None where it must stay as is."""
    names: list[str | None] = [None] * len(call.args)
    if signature is None or any(isinstance(a, ast.Starred) for a in call.args) or binding.problem:
        return names
    # A keyword before a positional-only argument would not be Python.
    if len(call.args) > len(signature.positional):
        return names
    for index, parameter in enumerate(signature.positional[: len(call.args)]):
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            names[index] = parameter.name
    return names


def _parameter(argument: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> Parameter:
    annotation = ast.unparse(argument.annotation) if argument.annotation else None
    return Parameter(argument.arg, kind, ast.unparse(default) if default else None, annotation)


def _positional(parameter: str | None, argument: ast.expr) -> Argument:
    if isinstance(argument, ast.Starred):
        return Argument(None, ast.unparse(argument.value), star="*")
    return Argument(parameter, ast.unparse(argument))


def _keyword(keyword: ast.keyword) -> Argument:
    star = "" if keyword.arg else "**"
    return Argument(keyword.arg, ast.unparse(keyword.value), star)
