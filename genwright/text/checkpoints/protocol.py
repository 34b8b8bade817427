"""Checkpoint: what the reader of a format provides, and what readers share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from genwright.errors import UserError
from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK, VALUES, Fp8Blocks
from genwright.quant.packed import Packed
from genwright.text.architectures.weight_map import Part
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader, read_json
from genwright.text.tokenizer.tokenizer import Tokenizer

SCALES = "_scale_inv"  # ends the name of an FP8 matrix's scales
Stored = TypeVar("Stored", torch.Tensor, Packed)


class Checkpoint(Protocol):
    """A model's configuration, tokenizer and tensors, read when asked for."""

    path: str
    folder: Path = Path()  # where a tokenizer and further settings lie
    config: ModelConfig
    hf_config: dict[str, Any]
    stays_packed: bool = True  # whether packed weights stay so unless told otherwise
    only_widened: Sequence[str] = ()  # quantized types of its weights that are not computed with as they are stored

    def names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype:
        """Of the stored tensor, or what it is widened to where that is no type of torch."""
        ...

    def where(self, name: str) -> str:
        """The file that holds a tensor, or that should."""
        ...

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        """One tensor or a part of it, as stored or in `dtype`; it may be a view of the file."""
        ...

    def format(self, name: str) -> Format | None:
        """The format that a matrix is stored in; None is plain floats, or what is only ever widened."""
        return Format("fp8") if self.dtype(name) == VALUES else None

    def packed(self, name: str, part: Part | None = None) -> Packed:
        """A matrix in that format, or whole units of it (see `Format.unit`); it may be a view of the file."""
        blocks = part and Part(part.axis, part.start // BLOCK, -(-part.length // BLOCK))
        return Fp8Blocks(self.tensor(name, None, part), self.tensor(name + SCALES, torch.float32, blocks))

    def widened(self, name: str, dtype: torch.dtype, part: Part | None = None) -> torch.Tensor:
        """A packed matrix in `dtype`; a part may split units, which are then read whole and cut."""
        form = self.format(name)
        if part is None or form is None:
            return self.packed(name).dequantize(dtype)
        whole, inside = part.around(form.unit(part.axis), self.shape(name)[part.axis])
        return self.packed(name, whole).dequantize(dtype).narrow(*inside)

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_folder(self.folder)

    def generation_config(self) -> FieldReader:
        """How answers are drawn and what ends them, as generation_config.json says it; it may be empty."""
        path = self.folder / "generation_config.json"
        return FieldReader(read_json(path) if path.exists() else {}, str(path))


def parse_dtype(name: str) -> torch.dtype:
    """float32, float16 or bfloat16."""
    if name not in ("float32", "float16", "bfloat16"):
        raise UserError(f"dtype should be auto, float32, float16 or bfloat16, and is {name!r}.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def narrow(whole: Stored, part: Part | None) -> Stored:
    """A view of a part."""
    return whole if part is None else whole.narrow(*part)


def widen(
    checkpoint: Checkpoint, name: str, stored: torch.Tensor, dtype: torch.dtype | None, part: Part | None = None
) -> torch.Tensor:
    """A part of a stored tensor in `dtype`, FP8 ones by their scales; None leaves it as it is."""
    if stored.dtype == VALUES and dtype is not None:
        return checkpoint.widened(name, dtype, part)
    if stored.dtype in (VALUES, torch.float8_e8m0fnu):
        return narrow(stored, part).to(dtype or stored.dtype)
    return cast(stored, dtype, f"{checkpoint.where(name)} stores {name!r}", part)


def cast(tensor: torch.Tensor, dtype: torch.dtype | None, what: str, part: Part | None = None) -> torch.Tensor:
    """A part of a stored tensor in `dtype`; `what` begins the sentence that refuses one that is not of plain floats."""
    plain = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    if tensor.dtype not in plain or tensor.layout != torch.strided:
        kind = f"{tensor.dtype} {tensor.layout}".replace("torch.", "").removesuffix(" strided")
        raise UserError(f"{what} as {kind}; weights are read from plain floats of 16, 32 or 64 bits.")
    return narrow(tensor.detach(), part).to(dtype or tensor.dtype)


def reason(error: Exception) -> str:
    """What a library complains of, cut down to the end of a sentence."""
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:160])
