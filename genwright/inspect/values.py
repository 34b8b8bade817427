"""What an expression of a script may be."""

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Ref:
    """Something imported, by its dotted name; `undefined` when the script uses a bare name that nothing binds."""

    dotted: str
    undefined: bool = False


@dataclass(frozen=True)
class Local:
    """A function or class that the script defines."""

    node: ast.AST


@dataclass(frozen=True)
class Instance:
    """An object of a class, and the call that made it (None when only an annotation tells)."""

    of: Ref | Local
    site: ast.Call | None = None


@dataclass(frozen=True)
class Made:
    """What calling something imported gave: an object of unknown class."""

    by: str


@dataclass(frozen=True)
class Member:
    """A method or attribute of an object, by name."""

    instance: Instance | Made
    name: str


@dataclass(frozen=True)
class Items:
    """A list, tuple, set or dict, by what it holds."""

    values: frozenset["Value"]


Value = Ref | Local | Instance | Made | Member | Items
Values = frozenset[Value]
