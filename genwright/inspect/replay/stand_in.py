"""Objects that stand in for what a run without its model does not have."""

import dis
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from genwright.inspect.analysis.expressions import FLUENT
from genwright.inspect.records.summary import RECORDED
from genwright.inspect.wrappers import MARK


class StandIn:
    """Takes part in whatever a script does with a value: it is called, iterated, awaited, unpacked, computed with.

    Its text names what it stands for.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_stands_for"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name in FLUENT:
            return lambda *args, **kwargs: self
        return StandIn(f"{self}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return StandIn(f"{self}()")

    def _genwright_recorded_summary(self) -> dict[str, Any]:
        return {"type": "stand-in", "name": str(self)}

    def __repr__(self) -> str:
        return str(self.__dict__.get("_stands_for", type(self).__qualname__))

    def __iter__(self) -> Iterator[Any]:
        """One item in a loop; as many as there are targets where it is unpacked."""
        return iter([StandIn(f"{self}[{i}]") for i in range(_targets(sys._getframe(1)))])

    def __next__(self) -> Any:
        raise StopIteration

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return StandIn(f"await {self}")

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield StandIn(f"{self}[0]")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def __getitem__(self, key: Any) -> Any:
        return StandIn(f"{self}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...

    def __contains__(self, item: Any) -> bool:
        return False

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return sys.modules["numpy"].zeros(1)


def _operator(name: str) -> Callable[..., StandIn]:
    return lambda self, *others: StandIn(f"{name}({', '.join(map(str, (self, *others)))})")


def _constant(value: Any) -> Callable[..., Any]:
    return lambda self, *others: value


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
for _name in _BINARY:
    setattr(StandIn, f"__{_name}__", _operator(_name))
    setattr(StandIn, f"__r{_name}__", _operator(_name))
for _name in ("neg", "pos", "abs", "invert", "round"):
    setattr(StandIn, f"__{_name}__", _operator(_name))
for _name, _value in {"lt": False, "gt": False, "le": True, "ge": True, "len": 1, "int": 1, "index": 1}.items():
    setattr(StandIn, f"__{_name}__", _constant(_value))
StandIn.__float__ = _constant(1.0)  # type: ignore[attr-defined]
StandIn.__bool__ = _constant(True)  # type: ignore[attr-defined]


def _targets(frame: Any) -> int:
    code, at = frame.f_code.co_code, frame.f_lasti
    operation = dis.opname[code[at]]
    if operation == "UNPACK_SEQUENCE":
        return int(code[at + 1])
    return int(code[at + 1] & 0xFF) if operation == "UNPACK_EX" else 1


def stand_in_of(summary: Any, name: str) -> StandIn:
    """A stand-in that records tell as they told the value that it stands for."""
    made = type("StandIn", (StandIn,), {RECORDED: summary}) if summary is not None else StandIn
    return made(name)


def uninitialised(kind: Any, name: str, summary: Any = None) -> Any:
    """An object of a class whose constructor has not run; attributes that it lacks are stand-ins.

    Without a class it is a stand-in. `summary` is how the object was recorded.
    """
    if not isinstance(kind, type):
        return stand_in_of(summary, name)

    def missing(self: Any, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{name}.{attribute}")

    # A name of its own would change the record of the call that is given the object.
    names: dict[str, Any] = {"__qualname__": kind.__qualname__, "__module__": kind.__module__, "__getattr__": missing}
    names |= {method: _or_stand_in(real, f"{name}.{method}()") for method, real in _inherited(kind)}
    names |= dict.fromkeys(FLUENT, _itself) | {"__repr__": lambda self: name}
    names |= {RECORDED: summary} if summary is not None else {}
    try:
        made: Any = type(kind.__name__, (kind,), names)
        return made.__new__(made)
    except TypeError:  # a class that forbids to be derived from, or whose __new__ wants arguments
        return stand_in_of(summary, name)


def _inherited(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods that the model's side has of a class; what is recorded and what the script defines stay."""
    for method in dir(kind):
        real = inspect.getattr_static(kind, method)
        own = not inspect.isfunction(real) or real.__module__ == "__main__" or hasattr(real, MARK)
        if not own and not (method.startswith("__") and method.endswith("__")):
            yield method, real


def _or_stand_in(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method that gives a stand-in where it fails because the constructor has not run."""

    @functools.wraps(real)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return real(self, *args, **kwargs)
        except Exception:
            return StandIn(name)

    return method


def _itself(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self
