"""Write the header of a GGUF file: metadata and a table of tensors, whose bytes follow."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from genwright.quant.ggml import TYPES
from genwright.text.checkpoints.gguf_header import ARRAY, MAGIC, STRING

VERSION, ALIGNMENT = 3, 32
UINT32, INT32, FLOAT32, BOOL = 4, 5, 6, 7


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to write: its shape, outermost dimension first, and its GGML type."""

    shape: tuple[int, ...]
    kind: int  # a key of quant.ggml.TYPES

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) // TYPES[self.kind].elements * TYPES[self.kind].bytes

    @property
    def padded(self) -> int:
        return -(-self.size // ALIGNMENT) * ALIGNMENT


def write_gguf_header(sink: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> None:
    """Ends where the first tensor begins; each tensor is padded to a multiple of ALIGNMENT bytes."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for name, entry in tensors.items():
        shape = entry.shape[::-1]  # the file lists the innermost first
        parts += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, entry.kind, offset)]
        offset += entry.padded
    header = b"".join(parts)
    sink.write(header + b"\0" * (-len(header) % ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value after its type."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    return struct.pack("<I", ARRAY) + _array(value)


def _array(values: Sequence[Any]) -> bytes:
    if values and isinstance(values[0], str):
        return struct.pack("<IQ", STRING, len(values)) + b"".join(map(_text, values))
    kind, code = (FLOAT32, "f") if values and isinstance(values[0], float) else (INT32, "i")
    return struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values)
