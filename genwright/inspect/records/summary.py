"""Values told in a few JSON words: what a record keeps of arguments and results."""

import dataclasses
import enum
import hashlib
import math
import sys
from pathlib import PurePath
from typing import Any

from genwright.inspect.records.media_metadata import picture_metadata

RECORDED = "_genwright_recorded_summary"  # of the class of an object that stands for a recorded one: its summary
_TEXT = 2000
_ITEMS = 32
_DEPTH = 5
_HASHED = 1 << 22  # bytes of an array that are hashed; a call's arguments may hold many


def is_plain(value: Any) -> bool:
    """Whether a value's summary is the value itself: a plain value, or a short list of such."""
    if type(value) is list and len(value) <= _ITEMS:
        return not any(isinstance(v, list) for v in value) and all(map(is_plain, value))
    if value is None or type(value) in (bool, int):
        return True
    return math.isfinite(value) if type(value) is float else type(value) is str and len(value) <= _TEXT


def summarise(value: Any, depth: int = 0) -> Any:
    """Plain values as they are; everything else as a dict with its `type` and what identifies it. Never raises."""
    try:
        return _summarise(value, depth)
    except Exception as error:  # a strange object must not stop the call that is recorded
        return {"type": type_name(type(value)), "unreadable": f"{type(error).__name__}: {error}"[:_TEXT]}


def _summarise(value: Any, depth: int) -> Any:
    told = getattr(type(value), RECORDED, None)
    if told is not None:
        return told(value) if callable(told) else told
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, enum.Enum) else {"type": type_name(type(value)), "value": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"type": "float", "value": repr(value)}
    if isinstance(value, str):
        return value if len(value) <= _TEXT else {"type": "str", "length": len(value), "start": value[:_TEXT]}
    if isinstance(value, bytes | bytearray | memoryview):
        held = bytes(value)
        return {"type": type(value).__name__, "length": len(held), "sha256": hashlib.sha256(held).hexdigest()}
    if isinstance(value, PurePath):
        return {"type": "path", "value": str(value)}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if depth >= _DEPTH:
        return {"type": type_name(type(value))}
    if isinstance(value, dict):
        items = [[summarise(k, depth + 1), summarise(v, depth + 1)] for k, v in list(value.items())[:_ITEMS]]
        plain = all(isinstance(k, str) for k, _ in items) and len(items) == len(value)
        return dict(items) if plain else {"type": type_name(type(value)), "length": len(value), "items": items}
    if isinstance(value, list | tuple | set | frozenset):
        return _sequence(value, depth)
    if isinstance(value, enum.Enum):
        return {"type": type_name(type(value)), "value": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: summarise(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}
        return {"type": type_name(type(value)), "fields": fields}
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return {"type": "callable", "name": f"{value.__module__}.{value.__qualname__}"}
    return _object(value)


def _sequence(value: list | tuple | set | frozenset, depth: int) -> Any:
    items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
    shown = [summarise(v, depth + 1) for v in items[:_ITEMS]]
    if type(value) is list and len(items) <= _ITEMS:
        return shown
    return {"type": type_name(type(value)), "length": len(items), "items": shown}


def _array(value: Any) -> dict[str, Any]:
    """A numpy array or a torch tensor, found by its shape and dtype so that neither need be imported."""
    summary: dict[str, Any] = {
        "type": type_name(type(value)),
        "shape": [int(n) for n in value.shape],
        "dtype": str(value.dtype),
    }
    if hasattr(value, "device"):
        summary["device"] = str(value.device)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_quantized or value.is_meta or value.numel() * value.element_size() > _HASHED:
            return summary
        held = value.detach().cpu().contiguous()
        summary["sha256"] = hashlib.sha256(_bytes(held, torch)).hexdigest()
        if held.is_floating_point():
            held = held.float() if held.element_size() < 4 else held
        return summary | (_statistics(held.numpy()) if not held.is_complex() else {})
    # An array of objects holds addresses, which differ from run to run.
    plain = hasattr(value, "tobytes") and not getattr(value.dtype, "hasobject", False)
    if plain and value.nbytes <= _HASHED:
        summary["sha256"] = hashlib.sha256(value.tobytes()).hexdigest()
        summary |= _statistics(value)
    return summary


def _bytes(tensor: Any, torch: Any) -> bytes:
    held: bytes = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return held


def _statistics(array: Any) -> dict[str, Any]:
    """Least, greatest, mean and deviation of the finite numbers, and how many are not finite."""
    kind = getattr(array.dtype, "kind", "")
    if kind not in "fiub" or not array.size:
        return {}
    numpy = sys.modules["numpy"]
    told: dict[str, Any] = {}
    if kind == "f":
        finite = numpy.isfinite(array)
        if not finite.all():
            told = {"nan": int(numpy.isnan(array).sum())}
            told["infinite"] = int(array.size - finite.sum() - told["nan"])
            array = array[finite]
            if not array.size:
                return told
    wide = array.astype("float64")
    numbers = {"min": array.min(), "max": array.max(), "mean": wide.mean(), "std": wide.std()}
    return {**{k: float(f"{float(v):.7g}") for k, v in numbers.items()}, **told}


def _object(value: Any) -> dict[str, Any]:
    summary: dict[str, Any] = {"type": type_name(type(value))}
    picture = sys.modules.get("PIL.Image")
    if picture is not None and isinstance(value, picture.Image):
        return {**summary, **picture_metadata(value), "sha256": hashlib.sha256(value.tobytes()).hexdigest()}
    parameters = getattr(value, "parameters", None)
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module) and callable(parameters):
        summary["parameters"] = sum(p.numel() for p in parameters())
    return summary


def type_name(kind: type) -> str:
    """A class by its module and qualified name; a builtin one by its name alone."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
