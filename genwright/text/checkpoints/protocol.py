"""Checkpoint: the protocol of all checkpoint readers, and functions that they share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from genwright.errors import UserError
from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK, VALUES, Fp8Blocks
from genwright.quant.packed import Packed
from genwright.quant.tiles import Tiles
from genwright.text.architectures.weight_map import Part
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader, read_json
from genwright.text.tokenizer.tokenizer import Tokenizer

SCALES = "_scale_inv"  # suffix of the name of an FP8 matrix's scales
Stored = TypeVar("Stored", torch.Tensor, Packed)


class Checkpoint(Protocol):
    """A model's configuration, tokenizer and tensors; tensors are read on request."""

    path: str
    folder: Path = Path()  # of the tokenizer and generation_config.json, if those are files
    config: ModelConfig
    hf_config: dict[str, Any]
    stays_packed: bool = True  # whether quantized weights stay packed by default

    def names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype; for a type that torch lacks, the dtype that it is dequantized to."""
        ...

    def where(self, name: str) -> str:
        """The file that holds a tensor; for a missing one, the file that should."""
        return self.path

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        """A tensor or a part of it, in `dtype` or as stored; it may be a view of the file."""
        ...

    def format(self, name: str) -> Format | None:
        """The format that a matrix is packed in; None for plain floats."""
        return Format("fp8") if self.dtype(name) == VALUES else None

    def packed(self, name: str, part: Part | None = None) -> Packed:
        """A packed matrix or a part of it in whole units (see `Format.unit`); it may be a view of the file."""
        blocks = part and Part(part.axis, part.start // BLOCK, -(-part.length // BLOCK))
        return Fp8Blocks(self.tensor(name, None, part), self.tensor(name + SCALES, torch.float32, blocks))

    def packed_on(self, device: torch.device, name: str, part: Part | None = None) -> Packed:
        """As `packed`, on a device, and laid out there if that is quicker."""
        return self.packed(name, part).map(lambda tensor: tensor.to(device))

    def tiles(self, parts: Mapping[str, Part], empty: Callable[..., torch.Tensor] = torch.empty) -> Tiles | None:
        """Matrices of one format, one below the other, in the layout of the CPU kernels and in memory of `empty`.

        None if that is not quicker than to lay out what `packed` returns.
        """
        return None

    def dequantized(self, name: str, dtype: torch.dtype, part: Part | None = None) -> torch.Tensor:
        """A packed matrix in `dtype`; units that a part splits are read whole."""
        form = self.format(name)
        if part is None or form is None:
            return self.packed(name).dequantize(dtype)
        aligned, inside = part.align(form.unit(part.axis), self.shape(name)[part.axis])
        return self.packed(name, aligned).dequantize(dtype).narrow(*inside)

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_folder(self.folder)

    def generation_config(self) -> FieldReader:
        """Sampling settings and end-of-sequence ids, with the keys of generation_config.json."""
        path = self.folder / "generation_config.json"
        return FieldReader(read_json(path) if path.exists() else {}, str(path))


def parse_dtype(name: str) -> torch.dtype:
    """float32, float16 or bfloat16."""
    if name not in ("float32", "float16", "bfloat16"):
        raise UserError(f"dtype must be auto, float32, float16 or bfloat16, not {name!r}.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def narrow(whole: Stored, part: Part | None) -> Stored:
    """A view of a part; None is the whole tensor."""
    return whole if part is None else whole.narrow(*part)


def convert_dtype(
    checkpoint: Checkpoint, name: str, stored: torch.Tensor, dtype: torch.dtype | None, part: Part | None = None
) -> torch.Tensor:
    """A part of a stored tensor in `dtype`, FP8 matrices dequantized; a dtype of None keeps the stored one."""
    if stored.dtype == VALUES and dtype is not None:
        return checkpoint.dequantized(name, dtype, part)
    if stored.dtype in (VALUES, torch.float8_e8m0fnu):
        return narrow(stored, part).to(dtype or stored.dtype)
    return cast(stored, dtype, f"{checkpoint.where(name)} stores {name!r}", part)


def cast(tensor: torch.Tensor, dtype: torch.dtype | None, what: str, part: Part | None = None) -> torch.Tensor:
    """A part of a tensor of plain floats in `dtype`; `what` begins the error for any other tensor."""
    floats = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    if tensor.dtype not in floats or tensor.layout != torch.strided:
        kind = f"{tensor.dtype} {tensor.layout}".replace("torch.", "").removesuffix(" strided")
        raise UserError(f"{what} as {kind}; weights must be float16, bfloat16, float32 or float64.")
    return narrow(tensor.detach(), part).to(dtype or tensor.dtype)


def reason(error: Exception) -> str:
    """The first sentence of a library's error, to end one of ours."""
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:160])
