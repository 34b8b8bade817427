"""Weight formats by name: int8, int4 with its groups, fp8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.quant import fp8, int4, int8
from genwright.quant.packed import Packed

GROUP = 32  # columns that share a scale in int4, unless the name says another number
LARGEST_GROUP = 1 << 16
EXAMPLES = "int8, int4, int4:g64, int4:g128:asym, fp8 or fp8:channel"
Entry = tuple[tuple[int, ...], torch.dtype]  # shape and type


@dataclass(frozen=True)
class Format:
    """How matrices are rounded and packed; scales of groups are float16, those of whole rows float32."""

    kind: str  # int8, int4 or fp8
    group: int | None = None  # columns per scale; None is a whole row, and for fp8 see `channel`
    asymmetric: bool = False  # int4: with a minimum per group
    channel: bool = False  # fp8: a scale per row, not per block

    @property
    def name(self) -> str:
        """As `parse_format` reads it, defaults spelt out."""
        group = "" if self.group is None else f":g{self.group}"
        return self.kind + group + ":asym" * self.asymmetric + ":channel" * self.channel

    def quantize(self, weight: Tensor) -> Packed:
        """A matrix [outputs, inputs] of any float type, rounded to nearest."""
        if self.kind == "int4":
            assert self.group is not None
            return int4.quantize(weight, self.group, self.asymmetric)
        if self.kind == "int8":
            return int8.quantize(weight, self.group, torch.float32 if self.group is None else torch.float16)
        return fp8.quantize_rows(weight) if self.channel else fp8.quantize(weight)

    def of_head(self, stored: "Format | None") -> "Format":
        """The head's format in a model of this one: int8, as llama.cpp's int4 files have it, and finer than fp8."""
        if self.kind == "int8":
            return self
        return stored if stored is not None and stored.kind == "int8" else Format("int8")

    def unit(self, axis: int) -> int:
        """How many rows (axis 0) or columns (1) share a scale and must not be parted; a scale of whole rows can be."""
        if self.kind == "fp8":
            return 1 if self.channel else fp8.BLOCK
        return self.group or 1 if axis else 1

    def entries(self, shape: tuple[int, ...]) -> dict[str, Entry]:
        """The tensors that hold a matrix of this shape."""
        tensors = self._empty(shape).tensors()
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}

    def bytes(self, shape: tuple[int, ...]) -> int:
        """Of a matrix of this shape."""
        return sum(tensor.nbytes for tensor in self._empty(shape).tensors().values())

    def assemble(self, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Packed:
        """A matrix of this shape from the tensors that `entries` names."""
        return replace(self._empty(shape), **tensors)

    @lru_cache(maxsize=256)  # noqa: B019 - a format is a plain value, and a large model's experts have few shapes
    def _empty(self, shape: tuple[int, ...]) -> Packed:
        return self.quantize(torch.empty(shape, dtype=torch.bfloat16, device="meta"))


def parse_format(text: str) -> Format:
    """`int4` is `int4:g32`: symmetric, in groups of 32."""
    found = re.fullmatch(r"(?:(int8)(?::g(\d{1,6}))?|(int4)(?::g(\d{1,6}))?(:asym)?|(fp8)(:channel)?)", text)
    if found is None:
        raise UserError(f"There is no weight format {text!r:.60}; formats are {EXAMPLES}.")
    digits = found[2] or found[4]
    group = int(digits) if digits else GROUP if found[3] else None
    if group is not None and (group % 8 or not 8 <= group <= LARGEST_GROUP):
        raise UserError(f"The weight format {text!r} has groups of {group}; they must be a multiple of 8 columns.")
    return Format(found[1] or found[3] or found[6], group, bool(found[5]), bool(found[7]))
