"""Matrices as other libraries quantize them: read in part, as one of our formats where that is exact, or as floats."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from genwright.quant.formats import Format
from genwright.quant.fp8 import BLOCK, Fp8Blocks
from genwright.quant.int4 import ZERO, Int4, pack
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.protocol import narrow

CHUNK = 1 << 20  # elements that are unpacked at a time
ROW_GROUP = 128  # columns per scale of an int4 matrix that is stored with one scale per row
Rectangle = tuple[int, int, int, int]  # first row, end row, first column, end column


class LibraryMatrix(Protocol):
    """A stored matrix [outputs, inputs]."""

    @property
    def form(self) -> Format | None:
        """The format that holds it exactly."""
        ...

    def packed(self, part: Part | None = None) -> Packed: ...

    def floats(self, dtype: torch.dtype, part: Part | None = None) -> Tensor: ...


def _rectangle(shape: tuple[int, ...], part: Part | None) -> Rectangle:
    ends = [[0, shape[0]], [0, shape[1]]]
    if part is not None:
        ends[part.axis] = [part.start, part.start + part.length]
    return (*ends[0], *ends[1])  # type: ignore[return-value]


def _chunks(rectangle: Rectangle) -> Iterator[Rectangle]:
    """Some rows at a time."""
    first, end, left, right = rectangle
    step = max(8, CHUNK // (right - left) // 8 * 8)
    for row in range(first, end, step):
        yield row, min(row + step, end), left, right


@dataclass(frozen=True)
class Integers:
    """w = q s + o with signed integers q, and a scale and an offset for each group of columns."""

    shape: tuple[int, int]
    bits: int
    read: Callable[[Rectangle], Tensor]  # q as int8; the rectangle is a multiple of `units`, or ends with the matrix
    units: tuple[int, int]
    scales: Tensor  # [rows or 1, groups] of any float dtype
    group: int  # columns per scale
    offsets: Callable[[], Tensor] | None = None  # float32 [rows or 1, groups]; None: all are zero
    groups: Tensor | None = None  # each column's group, if groups are not runs of columns (GPTQ's act-order)

    @cached_property
    def form(self) -> Format | None:
        if self.groups is not None or (self.bits > 4 and self.offsets is not None):
            return None
        rows = self.scales.shape[1] == 1
        if self.bits > 4 and rows:
            return Format("int8")
        if (group := ROW_GROUP if rows else self.group) % 8:
            return None
        asymmetric = self.offsets is not None
        return Format("int4" if self.bits <= 4 else "int8", group, asymmetric, wide=asymmetric or not self._half)

    @property
    def _half(self) -> bool:
        """Whether float16 holds the scales."""
        return self.scales.dtype == torch.float16 or torch.equal(self.scales.half().float(), self.scales.float())

    def packed(self, part: Part | None = None) -> Packed:
        offsets = self.offsets() if self.offsets is not None else None
        parts = [self._packed(some, offsets) for some in _chunks(_rectangle(self.shape, part))]
        return type(parts[0]).cat(parts)

    def floats(self, dtype: torch.dtype, part: Part | None = None) -> Tensor:
        whole = _rectangle(self.shape, part)
        first, end, left, right = whole
        offsets = self.offsets() if self.offsets is not None else None
        groups = torch.arange(left, right) // self.group if self.groups is None else self.groups[left:right]
        out = torch.empty(end - first, right - left, dtype=dtype)
        for some in _chunks(whole):
            values = self._codes(some).float().mul_(self._of(self.scales, some, groups))
            if offsets is not None:
                values.add_(self._of(offsets, some, groups))
            out[some[0] - first : some[1] - first] = values
        return out

    def _packed(self, some: Rectangle, offsets: Tensor | None) -> Packed:
        form, q = self.form, self._codes(some)
        assert form is not None
        if form.group is None:
            return Int8(q, self._of(self.scales, some, torch.tensor([0])), self.shape[1])
        dtype = torch.float32 if form.wide else torch.float16
        groups = torch.arange(some[2], some[3], form.group) // self.group
        scales = self._of(self.scales, some, groups)
        if form.kind == "int8":
            return Int8(q, scales.to(dtype), form.group)
        # Int4 counts from 0, so the offset becomes the weight of its smallest code.
        minimums = None if offsets is None else (self._of(offsets, some, groups) - ZERO * scales).to(dtype)
        return Int4(pack(q + ZERO), scales.to(dtype), minimums, some[3] - some[2], form.group)

    def _codes(self, some: Rectangle) -> Tensor:
        first, end, left, right = some
        high, wide = self.units
        top, side = first // high * high, left // wide * wide
        below, beside = min(-(-end // high) * high, self.shape[0]), min(-(-right // wide) * wide, self.shape[1])
        return self.read((top, below, side, beside))[first - top : end - top, left - side : right - side]

    def _of(self, table: Tensor, some: Rectangle, groups: Tensor) -> Tensor:
        """Scales or offsets of some rows and groups, float32; one row is for all."""
        rows = table[some[0] : some[1]] if table.shape[0] > 1 else table.expand(some[1] - some[0], -1)
        return rows.float()[:, groups] if table.shape[1] > 1 else rows.float().expand(-1, len(groups)).contiguous()


@dataclass(frozen=True)
class Floats8:
    """e4m3 values with a scale for the matrix, for each row or for each block of 128 x 128."""

    values: Tensor
    scales: Tensor  # [1 or rows, 1], or one per block
    blocks: bool = False

    @property
    def form(self) -> Format:
        return Format("fp8", channel=not self.blocks)

    def packed(self, part: Part | None = None) -> Packed:
        rows, columns = self.values.shape
        if self.blocks:
            return narrow(Fp8Blocks(self.values, self.scales.float(), BLOCK, BLOCK), part)
        return narrow(Fp8Blocks(self.values, self.scales.float().expand(rows, 1), 1, columns), part)

    def floats(self, dtype: torch.dtype, part: Part | None = None) -> Tensor:
        if part is None or not self.blocks:
            return self.packed(part).dequantize(dtype)
        aligned, inside = part.align(BLOCK, self.values.shape[part.axis])
        return self.packed(aligned).dequantize(dtype).narrow(*inside)


@dataclass(frozen=True)
class Codebook:
    """bitsandbytes' 4 bits: one of 16 values times the largest of a block; blocks run along rows, over their ends."""

    shape: tuple[int, int]
    bytes: Tensor  # uint8 [rows, columns / 2], the first of two columns in the high half
    values: Tensor  # float32 [16]
    largest: Callable[[int, int], Tensor]  # float32, of the blocks from one number to another
    block: int  # elements
    form: Format | None = None  # no format has such values

    def packed(self, part: Part | None = None) -> Packed:
        raise AssertionError("has no packed form")

    def floats(self, dtype: torch.dtype, part: Part | None = None) -> Tensor:
        whole = _rectangle(self.shape, part)
        columns, out = self.shape[1], torch.empty(whole[1] - whole[0], whole[3] - whole[2], dtype=dtype)
        for first, end, left, right in _chunks(whole):
            halves = self.bytes[first:end, left // 2 : -(-right // 2)]
            q = torch.stack((halves >> 4, halves & 15), dim=-1).flatten(1)[:, left % 2 :][:, : right - left]
            elements = torch.arange(first, end)[:, None] * columns + torch.arange(left, right)
            start = (first * columns + left) // self.block
            largest = self.largest(start, ((end - 1) * columns + right - 1) // self.block + 1)
            out[first - whole[0] : end - whole[0]] = self.values[q.long()] * largest[elements // self.block - start]
        return out
