"""Mock mode: results made up from an interface's signature, its return annotation and recorded shapes."""

import ast
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.replay.recorded_results import RecordedStream
from genwright.inspect.replay.stand_in import StandIn, uninitialised

_TEXT = "mock"
_PLAIN: dict[str, Any] = {"str": _TEXT, "int": 1, "float": 1.0, "bool": True, "bytes": b"", "None": None}
_STREAMS = ("Iterator", "Iterable", "Generator", "AsyncIterator", "AsyncIterable", "AsyncGenerator")


class Mock:
    """Answers every call of an interface with a value like the recorded one, or like its annotation says."""

    def __init__(
        self, manifest: Manifest, run: StoredRun | None = None, class_of: Callable[[str], Any] = lambda name: None
    ) -> None:
        self._class_of = class_of
        self._interfaces = {i.name: i for i in manifest.interfaces}
        self._recorded: dict[tuple[str, str], Call] = {}
        for call in run.calls() if run is not None else ():
            if call.status == "returned":
                self._recorded.setdefault((call.event, call.interface), call)

    def answer(self, event: str, interface: str, args: tuple, kwargs: dict[str, Any], target: Any = None) -> Any:
        """Check the arguments against the signature as Python would, and make a result up."""
        known = self._interfaces.get(interface)
        if known is not None:
            _check([known.signature, *(known.factories.values() if event == "create" else ())], args, kwargs)
        if event == "create":
            return uninitialised(self._class_of(interface), interface)
        call = self._recorded.get((event, interface))
        if call is not None:
            made = like(call.result, f"{interface}()")
            return _later(made) if call.awaited else made
        made = _annotated(_annotation(known), f"{interface}()") if known else StandIn(f"{interface}()")
        function = getattr(target, "__func__", target)
        return _later(made) if inspect.iscoroutinefunction(function) else made


async def _later(value: Any) -> Any:
    return value


def _check(signatures: list[Signature | None], args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise what Python raises for arguments that fit no signature; an object may be made by its class or a factory."""
    errors = []
    for signature in signatures:
        try:
            if signature is not None:
                signature.python.bind(*args, **kwargs)
            return
        except TypeError as error:
            errors.append(error)
    raise errors[0]


def like(summary: Any, name: str) -> Any:
    """A value that a record's summary would describe: plain values as they are, arrays of zeros in their shape."""
    if isinstance(summary, list):
        return [like(item, f"{name}[{i}]") for i, item in enumerate(summary)]
    if not isinstance(summary, dict) or "type" not in summary:
        return {k: like(v, f"{name}[{k!r}]") for k, v in summary.items()} if isinstance(summary, dict) else summary
    kind = str(summary["type"])
    if kind == "stream":
        return RecordedStream(like(summary.get("items", []), name), None)
    if "shape" in summary and "dtype" in summary:
        return _zeros(kind, summary["shape"], str(summary["dtype"]), name)
    if kind == "str":
        return summary.get("start", _TEXT)
    if kind in ("tuple", "set", "list", "dict") and "items" in summary:
        items = [like(item, f"{name}[{i}]") for i, item in enumerate(summary["items"])]
        return {"tuple": tuple, "set": set, "list": list, "dict": dict}[kind](items)
    return StandIn(name)


def _zeros(kind: str, shape: list[int], dtype: str, name: str) -> Any:
    with contextlib.suppress(Exception):  # a library that is not there, a dtype that it does not know
        if kind.startswith("torch."):
            import torch

            return torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        import numpy

        return numpy.zeros(shape, dtype)
    return StandIn(name)


def _annotation(interface: Interface) -> str:
    return interface.returns or (interface.signature.returns if interface.signature else None) or ""


def _annotated(annotation: str, name: str) -> Any:
    try:
        return _of(ast.parse(annotation.strip() or "Any", mode="eval").body, name)
    except (SyntaxError, ValueError):
        return StandIn(name)


def _of(node: ast.expr, name: str) -> Any:
    """A value of the type that an annotation's syntax tree names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _annotated(node.value, name)
    if isinstance(node, ast.BinOp):  # `str | None`
        return _of(node.left, name)
    inner = list(_inner(node))
    last = re.sub(r".*\.", "", ast.unparse(node.value if isinstance(node, ast.Subscript) else node))
    if last in _PLAIN:
        return _PLAIN[last]
    if last in ("list", "List", "Sequence"):
        return [_of(n, f"{name}[0]") for n in inner[:1]]
    if last in ("tuple", "Tuple"):
        kept = [n for n in inner if not (isinstance(n, ast.Constant) and n.value is ...)]
        return tuple(_of(n, f"{name}[{i}]") for i, n in enumerate(kept))
    if last in ("dict", "Dict", "Mapping"):
        return {}
    if last in ("Optional", "Union", "Awaitable") and inner:
        return _of(inner[0], name)
    if last in _STREAMS:
        return RecordedStream([_of(n, f"{name}[0]") for n in inner[:1]], None)
    if last in ("ndarray", "Tensor"):
        return _zeros("torch.Tensor" if last == "Tensor" else "numpy.ndarray", [1], "float32", name)
    return StandIn(name)


def _inner(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Subscript):
        yield from node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
