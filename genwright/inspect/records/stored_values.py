"""Results in full: the structure as JSON, its arrays as npz and its tensors as safetensors; nothing is pickled."""

import base64
import contextlib
import json
import math
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from genwright.errors import UserError
from genwright.inspect.records.secrets import without_secrets
from genwright.inspect.records.stored_runs import Call
from genwright.inspect.records.summary import is_plain, type_name

_CAP = 1 << 26  # bytes of one result
_DEPTH = 32
_TAG = "$"  # a JSON object with this key is not a dict but what the tag says


@dataclass(frozen=True)
class OpaqueValue:
    """Stands for what could not be stored; using it is an error that names its type."""

    type_name: str
    reason: str = "no format stores it"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(f"{name!r} is asked of a recorded {self.type_name}, which is not in the record: {self.reason}.")


@dataclass
class _Parts:
    """What of a value is written beside its JSON."""

    arrays: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    left: int = _CAP

    def takes(self, size: int) -> bool:
        """Whether so many bytes still fit."""
        if size > self.left:
            return False
        self.left -= size
        return True


def store_value(value: Any, stem: Path, secrets: Sequence[str] = ()) -> Path | None:
    """Write a value as `stem`.json, .npz and .safetensors; None if nothing of it can be stored.

    Texts are written without the `secrets`.
    """
    parts = _Parts()
    data = _encode(value, parts, 0)
    if isinstance(data, dict) and data.get(_TAG) == "opaque":
        return None
    data = without_secrets(data, list(secrets)) if secrets else data
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        stem.parent.mkdir(exist_ok=True)
        if parts.arrays:
            import numpy

            numpy.savez(stem.with_name(f"{stem.name}.npz"), **parts.arrays)
        if parts.tensors:
            from safetensors.torch import save_file

            save_file(parts.tensors, stem.with_name(f"{stem.name}.safetensors"))
        path = stem.with_name(f"{stem.name}.json")
        path.write_text(text, encoding="utf-8")
    except (ImportError, OSError, ValueError, TypeError, RuntimeError):  # a full disk, a strange subclass
        return None
    return path


def load_value(call: Call) -> Any:
    """A call's result in full; an `OpaqueValue` stands where something could not be stored."""
    if call.value is None:
        if is_plain(call.result):
            return call.result
        return OpaqueValue(str(call.result.get("type", "result")) if isinstance(call.result, dict) else "list")
    return read_value(call.value)


def read_value(path: Path) -> Any:
    """The value that `store_value` wrote."""
    try:
        return _decode(json.loads(path.read_text(encoding="utf-8")), _Stored(path))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"The recorded value {path} cannot be read: {error}.") from error


def _encode(value: Any, parts: _Parts, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if kind is str:
        return value if parts.takes(len(value)) else _opaque(value, "it is longer than the record's limit")
    if depth > _DEPTH:
        return _opaque(value, "it is nested too deeply")
    if kind in (list, tuple, set, frozenset):
        items = [_encode(v, parts, depth + 1) for v in value]
        parts.takes(8 * len(items))
        return items if kind is list else {_TAG: kind.__name__, "items": items}
    if kind in (dict, OrderedDict):
        pairs = [[_encode(k, parts, depth + 1), _encode(v, parts, depth + 1)] for k, v in value.items()]
        plain = all(isinstance(k, str) for k in value) and _TAG not in value
        return dict(pairs) if plain else {_TAG: "dict", "items": pairs}
    if kind in (bytes, bytearray):
        fits = parts.takes(len(value))
        text = base64.b64encode(value).decode() if fits else ""
        return {_TAG: kind.__name__, "base64": text} if fits else _opaque(value, "it is longer than the record's limit")
    if kind is complex:
        return {_TAG: "complex", "value": repr(value)}
    if isinstance(value, PurePath):
        return {_TAG: "path", "value": str(value)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        items = [_encode(v, parts, depth + 1) for v in value]
        return {_TAG: "namedtuple", "name": kind.__name__, "fields": list(kind._fields), "items": items}
    with contextlib.suppress(Exception):  # a strange array is opaque
        return _encode_array(value, parts)
    return _opaque(value)


def _encode_array(value: Any, parts: _Parts) -> Any:
    numpy, torch, pil = (sys.modules.get(name) for name in ("numpy", "torch", "PIL.Image"))
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        array = numpy.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            return _opaque(value)
        if not parts.takes(array.nbytes):
            return _opaque(value, "it is larger than the record's limit")
        parts.arrays[f"v{len(parts.arrays)}"] = array
        return {_TAG: "scalar" if isinstance(value, numpy.generic) else "array", "key": f"v{len(parts.arrays) - 1}"}
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.is_sparse or value.is_quantized or value.is_meta or value.is_complex():
            return _opaque(value)
        if not parts.takes(value.numel() * value.element_size()):
            return _opaque(value, "it is larger than the record's limit")
        # Its own copy: safetensors refuses tensors that share memory, and the script may write to it later.
        parts.tensors[f"v{len(parts.tensors)}"] = value.detach().cpu().clone().contiguous()
        return {_TAG: "tensor", "key": f"v{len(parts.tensors) - 1}"}
    if pil is not None and numpy is not None and isinstance(value, pil.Image) and value.mode in ("L", "RGB", "RGBA"):
        return {_TAG: "image", "mode": value.mode, "array": _encode_array(numpy.asarray(value), parts)}
    return _opaque(value)


def _opaque(value: Any, reason: str = "no format stores it") -> dict[str, str]:
    return {_TAG: "opaque", "type": type_name(type(value)), "reason": reason}


class _Stored:
    """The files beside a value's JSON, each opened when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrays: Any = None
        self._tensors: Any = None

    def array(self, key: str) -> Any:
        if self._arrays is None:
            import numpy

            self._arrays = numpy.load(self._path.with_suffix(".npz"), allow_pickle=False)
        return self._arrays[key]

    def tensor(self, key: str) -> Any:
        if self._tensors is None:
            from safetensors.torch import load_file

            self._tensors = load_file(self._path.with_suffix(".safetensors"))
        return self._tensors[key]


def _decode(data: Any, stored: _Stored) -> Any:
    if isinstance(data, list):
        return [_decode(v, stored) for v in data]
    if not isinstance(data, dict):
        return data
    tag = data.get(_TAG)
    if tag is None:
        return {k: _decode(v, stored) for k, v in data.items()}
    if tag in ("float", "complex"):
        return {"float": float, "complex": complex}[tag](data["value"])
    if tag in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](_decode(v, stored) for v in data["items"])
    if tag == "dict":
        return {_decode(k, stored): _decode(v, stored) for k, v in data["items"]}
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag](base64.b64decode(data["base64"]))
    if tag == "path":
        return Path(data["value"])
    if tag == "namedtuple":
        made = namedtuple(data["name"], data["fields"])  # type: ignore[misc]
        return made(*(_decode(v, stored) for v in data["items"]))
    return _decode_array(tag, data, stored)


def _decode_array(tag: str, data: dict[str, Any], stored: _Stored) -> Any:
    if tag == "array":
        return stored.array(data["key"])
    if tag == "scalar":
        return stored.array(data["key"])[()]
    if tag == "tensor":
        return stored.tensor(data["key"])
    if tag == "image":
        from PIL import Image

        return Image.fromarray(_decode(data["array"], stored), data["mode"])
    if tag == "opaque":
        return OpaqueValue(data["type"], data["reason"])
    raise ValueError(f"unknown tag {tag!r}")
