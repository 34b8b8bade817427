"""PyTorch's own files, read without running code from them."""

from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.checkpoints.protocol import reason

_ZIP = b"PK\x03\x04"


def is_pickled(path: Path) -> bool:
    """Whether a file is a zip archive, as torch.save writes, or an older bare pickle."""
    with path.open("rb") as file:
        return file.read(4) in (_ZIP, b"\x80\x02\x8a\x0a")


def load_pickled(path: Path) -> dict[str, Any]:
    """A dictionary from a PyTorch file, its tensors memory-mapped where the format allows it."""
    try:
        with path.open("rb") as file:
            mapped = file.read(4) == _ZIP  # the older format cannot be mapped
        value = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:  # a broken file can make the unpickler raise anything
        raise UserError(f"{path} is not a valid PyTorch file of plain tensors: {reason(error)}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a dictionary of tensors, not a {type(value).__name__}.")
    return value
