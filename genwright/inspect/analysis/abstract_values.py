"""What an expression of a script may be."""

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ref:
    """Something imported, by its dotted name; `undefined` when nothing binds the name but, maybe, a star import."""

    dotted: str
    undefined: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """A function or class that the script defines."""

    node: ast.AST


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class, and the call that made it (None when only an annotation tells).

    It is `derived` when it went through something that usually gives back the object itself, but need not.
    """

    of: Ref | Local
    site: ast.Call | None = None
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What calling something imported gave, or a part of that (`load[0]`): an object of unknown class."""

    by: str

    def part(self, key: object) -> "Made":
        """An item of it; a part's own parts are not told apart."""
        return self if self.is_part else Made(f"{self.by}[{key!r}]")

    @property
    def is_part(self) -> bool:
        return self.by.endswith("]")


@dataclass(frozen=True, slots=True)
class Member:
    """A method or attribute of an object, by name."""

    instance: Instance | Made
    name: str


@dataclass(frozen=True, slots=True)
class Partial:
    """`functools.partial` of something."""

    of: "Value"


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple, set or dict, by what it holds."""

    values: frozenset["Value"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text literal of the script that may name a file."""

    node: ast.Constant


Value = Ref | Local | Instance | Made | Member | Partial | Items | Text
Values = frozenset[Value]
