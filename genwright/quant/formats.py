"""Weight formats by name: int8, int4 and fp8, with their group sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.quant import fp8, int4, int8
from genwright.quant.packed import Packed

GROUP = 32  # columns per scale in int4, unless the name says otherwise
MAX_GROUP = 1 << 16
EXAMPLES = "int8, int4, int4:g64, int4:g128:asym, fp8 or fp8:channel"
Entry = tuple[tuple[int, ...], torch.dtype]  # shape and dtype


@dataclass(frozen=True)
class Format:
    """How matrices are quantized. Scales per group are float16 unless `wide`; scales per row and fp8's are float32."""

    kind: str  # int8, int4 or fp8
    group: int | None = None  # columns per scale; None for one scale per row; unused by fp8
    asymmetric: bool = False  # int4: with a minimum per group
    channel: bool = False  # fp8: one scale per row instead of one per block
    wide: bool = False  # scales and minimums per group are float32, which holds those of other libraries exactly

    @property
    def name(self) -> str:
        """The name that `parse_format` reads, with defaults written out."""
        group = "" if self.group is None else f":g{self.group}"
        return self.kind + group + ":asym" * self.asymmetric + ":channel" * self.channel + ":f32" * self.wide

    @property
    def portable(self) -> bool:
        """Whether files of ours can hold it."""
        return True

    def quantize(self, weight: Tensor) -> Packed:
        """Quantize a matrix [outputs, inputs] of any float dtype, rounding to nearest."""
        scales_dtype = torch.float32 if self.group is None or self.wide else torch.float16
        if self.kind == "int4":
            assert self.group is not None
            return int4.quantize(weight, self.group, self.asymmetric, scales_dtype)
        if self.kind == "int8":
            return int8.quantize(weight, self.group, scales_dtype)
        return fp8.quantize_rows(weight) if self.channel else fp8.quantize(weight)

    def of_head(self, stored: "Format | None") -> "Format":
        """The format of the output head in a model of this format: int8, as in llama.cpp's int4 files."""
        if self.kind == "int8":
            return self
        return stored if stored is not None and stored.kind == "int8" else Format("int8")

    def unit(self, axis: int) -> int:
        """The multiple of rows (axis 0) or columns (axis 1) at which a matrix may be split."""
        if self.kind == "fp8":
            return 1 if self.channel else fp8.BLOCK
        return self.group or 1 if axis else 1

    @property
    def by_rows(self) -> bool:
        """Whether a scale is for a whole row, so that columns cannot be quantized without the others."""
        return self.channel or (self.kind == "int8" and self.group is None)

    def entries(self, shape: tuple[int, ...]) -> dict[str, Entry]:
        """Shapes and dtypes of the tensors that store a matrix of this shape."""
        tensors = self._empty(shape).tensors()
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}

    def bytes(self, shape: tuple[int, ...], tiled: bool = False) -> int:
        """Size of a matrix of this shape, perhaps in the CPU's tiles."""
        rows, columns = shape
        if self.kind == "fp8":
            scales = rows if self.channel else -(-rows // fp8.BLOCK) * -(-columns // fp8.BLOCK)
            return rows * columns + 4 * scales
        groups = rows * (1 if self.group is None else -(-columns // self.group))
        scale = 4 if self.wide or (self.kind == "int8" and self.group is None) else 2
        if self.kind == "int8":
            return rows * columns + groups * scale
        return rows * -(-columns // int4.WORD) * 4 + groups * scale * (1 + self.asymmetric)

    def assemble(self, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Packed:
        """A matrix of this shape from the tensors named in `entries`."""
        return replace(self._empty(shape), **tensors)

    @lru_cache(maxsize=256)  # noqa: B019 - formats are small and few, so keeping them alive is harmless
    def _empty(self, shape: tuple[int, ...]) -> Packed:
        return self.quantize(torch.empty(shape, dtype=torch.bfloat16, device="meta"))


def parse_format(text: str) -> Format:
    """Parse a name such as `int4:g64:asym`; `int4` is short for `int4:g32`."""
    found = re.fullmatch(
        r"(?:(int8)(?::g(\d{1,6})(:f32)?)?|(int4)(?::g(\d{1,6}))?(:asym)?(:f32)?|(fp8)(:channel)?)", text
    )
    if found is None:
        raise UserError(f"Weight format {text!r:.60} is unknown; choose {EXAMPLES}.")
    digits = found[2] or found[5]
    group = int(digits) if digits else GROUP if found[4] else None
    if group is not None and (group % 8 or not 8 <= group <= MAX_GROUP):
        raise UserError(
            f"The group of weight format {text!r} must be a multiple of 8 columns up to {MAX_GROUP:,}, not {group}."
        )
    kind = found[1] or found[4] or found[8]
    return Format(kind, group, bool(found[6]), bool(found[9]), bool(found[3] or found[7]))
