"""What the interpreter of command lines may compute with: plain values, pure functions and a real argparse parser."""

import argparse
import ast
import math
import operator
import os.path
import pathlib
from collections.abc import Callable
from typing import Any


class Unknown:
    """A value that only running the script would tell, by its source."""

    def __init__(self, source: str | ast.expr) -> None:
        self._source = source

    @property
    def text(self) -> str:
        return self._source if isinstance(self._source, str) else ast.unparse(self._source)

    def __call__(self, value: str) -> str:
        """Stands in for an unknown `type=` of argparse: the text is taken as it is."""
        return value


class Dotted(Unknown):
    """An imported name: known by where it comes from, not by value."""


class Parser(argparse.ArgumentParser):
    """A real parser that remembers being asked to parse and never exits."""

    parsed = False

    def error(self, message: str) -> Any:
        raise ValueError(message)


PURE: dict[str, Any] = {
    "argparse.ArgumentParser": Parser,
    "jsonargparse.ArgumentParser": Parser,
    **{
        f"argparse.{n}": getattr(argparse, n)
        for n in ("SUPPRESS", "REMAINDER", "OPTIONAL", "ZERO_OR_MORE", "ONE_OR_MORE")
    },
    **{f"argparse.{n}": getattr(argparse, n) for n in dir(argparse) if n.endswith("Formatter")},
    "argparse.BooleanOptionalAction": argparse.BooleanOptionalAction,
    "argparse.FileType": lambda *_, **__: str,
    "pathlib.Path": pathlib.PurePath,
    "pathlib.PurePath": pathlib.PurePath,
    "os.path.join": os.path.join,
    "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname,
    "os.path.splitext": os.path.splitext,
    "os.getenv": lambda _, default=None: default,
    "os.environ.get": lambda _, default=None: default,
    "os.sep": os.sep,
    "math.inf": math.inf,
    "math.pi": math.pi,
    "collections.OrderedDict": dict,
    **{
        f"builtins.{f.__name__}": f for f in (dict, list, tuple, set, str, int, float, bool, len, sorted, min, max, sum)
    },
    **{f"builtins.{f.__name__}": f for f in (abs, round, range, enumerate, zip, isinstance, type, repr)},
}
METHODS = {
    dict: {"update", "items", "keys", "values", "get", "copy", "setdefault", "pop"},
    list: {"append", "extend", "copy", "index", "insert"},
    tuple: {"index", "count"},
    set: {"add", "union", "update"},
    str: {"format", "join", "split", "strip", "lower", "upper", "replace", "startswith", "endswith", "title", "rstrip"},
    pathlib.PurePath: {"joinpath", "with_suffix", "with_name"},
    Parser: {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "set_defaults"},
    argparse._ActionsContainer: {"add_argument", "add_argument_group", "add_mutually_exclusive_group"},
    argparse._SubParsersAction: {"add_parser"},
}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def tolerated(keywords: dict[str, Any]) -> dict[str, Any]:
    """`add_argument`'s keywords without what argparse would refuse because it is not known."""
    kept = dict(keywords)
    for key in ("choices", "nargs", "required", "help", "metavar", "const", "dest", "version"):
        if isinstance(kept.get(key), Unknown):
            kept[key] = f"{{{kept[key].text}}}" if key in ("help", "version") else None
            if kept[key] is None:
                del kept[key]
    if isinstance(kept.get("action"), Unknown):
        kept["action"] = "store"
    return kept
