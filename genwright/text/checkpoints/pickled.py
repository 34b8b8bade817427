"""PyTorch's own files, read without running what they say."""

from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.checkpoints.protocol import reason


def is_pickled(path: Path) -> bool:
    """Whether a file is a zip archive, as torch.save writes, or an older bare pickle."""
    with path.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"\x80\x02\x8a\x0a")


def load_pickled(path: Path) -> dict[str, Any]:
    """A dictionary from a PyTorch file, its tensors mapped and not read; never unpickles code."""
    try:
        with path.open("rb") as file:
            mapped = file.read(4) == b"PK\x03\x04"  # the older format cannot be mapped
        value = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:  # the unpickler raises whatever a broken file leads it to
        raise UserError(f"{path} is not a whole PyTorch file of plain tensors: {reason(error)}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} should hold a dictionary of tensors, and holds a {type(value).__name__}.")
    return value
