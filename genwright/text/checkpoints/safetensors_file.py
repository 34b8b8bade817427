"""Open a safetensors file, or write one tensor by tensor from sizes that are known in advance."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from genwright.errors import UserError
from genwright.quant.formats import Entry
from genwright.text.checkpoints.protocol import reason

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int8: "I8",
    torch.int32: "I32",
}


def open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a valid safetensors file: {reason(error)}.") from None


def size(entry: Entry) -> int:
    """In bytes."""
    return torch.Size(entry[0]).numel() * entry[1].itemsize


def write_header(sink: BinaryIO, entries: Mapping[str, Entry]) -> None:
    """Eight bytes of length, then JSON padded to a multiple of eight bytes; the tensors follow in the same order."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in entries.items():
        start, end = end, end + size(entry)
        table[name] = {"dtype": NAMES[entry[1]], "shape": list(entry[0]), "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sink.write(len(text).to_bytes(8, "little") + text)


def write_tensor(sink: BinaryIO, tensor: torch.Tensor) -> None:
    sink.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
