"""Values told in a few JSON words: what a record keeps of arguments and results."""

import dataclasses
import enum
import hashlib
import math
import sys
from pathlib import PurePath
from typing import Any

_TEXT = 2000
_ITEMS = 32
_DEPTH = 5
_HASHED = 1 << 22  # bytes of an array that are hashed; a call's arguments may hold many


def summarise(value: Any, depth: int = 0) -> Any:
    """Plain values as they are; everything else as a dict with its `type` and what identifies it. Never raises."""
    try:
        return _summarise(value, depth)
    except Exception as error:  # a strange object must not stop the call that is recorded
        return {"type": _name(type(value)), "unreadable": f"{type(error).__name__}: {error}"[:_TEXT]}


def _summarise(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, enum.Enum) else {"type": _name(type(value)), "value": str(value)}
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
        return {"type": _name(type(value))}
    if isinstance(value, dict):
        items = [[summarise(k, depth + 1), summarise(v, depth + 1)] for k, v in list(value.items())[:_ITEMS]]
        plain = all(isinstance(k, str) for k, _ in items) and len(items) == len(value)
        return dict(items) if plain else {"type": _name(type(value)), "length": len(value), "items": items}
    if isinstance(value, list | tuple | set | frozenset):
        return _sequence(value, depth)
    if isinstance(value, enum.Enum):
        return {"type": _name(type(value)), "value": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: summarise(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}
        return {"type": _name(type(value)), "fields": fields}
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return {"type": "callable", "name": f"{value.__module__}.{value.__qualname__}"}
    return _object(value)


def _sequence(value: list | tuple | set | frozenset, depth: int) -> Any:
    items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
    shown = [summarise(v, depth + 1) for v in items[:_ITEMS]]
    if type(value) is list and len(items) <= _ITEMS:
        return shown
    return {"type": _name(type(value)), "length": len(items), "items": shown}


def _array(value: Any) -> dict[str, Any]:
    """A numpy array or a torch tensor, found by its shape and dtype so that neither need be imported."""
    summary: dict[str, Any] = {
        "type": _name(type(value)),
        "shape": [int(n) for n in value.shape],
        "dtype": str(value.dtype),
    }
    if hasattr(value, "device"):
        summary["device"] = str(value.device)
    array = value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # Reading back from a GPU would wait for it; the shape tells enough there.
        if value.device.type != "cpu" or value.is_sparse or value.is_quantized:
            return summary
        array = value.detach().contiguous().view(torch.uint8) if value.numel() and value.dim() else value.detach()
        array = array.reshape(-1).numpy() if value.dim() else array.float().numpy()
    # An array of objects holds addresses, which differ from run to run.
    plain = hasattr(array, "tobytes") and not getattr(array.dtype, "hasobject", False)
    if plain and array.nbytes <= _HASHED:
        summary["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
    return summary


def _object(value: Any) -> dict[str, Any]:
    summary: dict[str, Any] = {"type": _name(type(value))}
    parameters = getattr(value, "parameters", None)
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module) and callable(parameters):
        summary["parameters"] = sum(p.numel() for p in parameters())
    return summary


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
