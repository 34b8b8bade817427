"""Tiles: integer weights of 4 to 8 bits in tiles of 16 rows, the layout that the CPU kernel multiplies.

A weight is (q - z) s + m, or (table[q] - z) s + m, where q has no sign. The rows of a tile lie side by side: word k of
a unit of 32 columns holds columns 4 k to 4 k + 3 of one row, and the words k of 16 rows follow each other. Codes of
fewer than 8 bits store the lower four bits of words k and k + 4 together, and the others apart.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.quant import int4
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed, Weight

ROWS = 16  # of a tile
UNIT = 32  # columns
BLOCK = 256  # columns that share a factor of their scales
LOW = 0x0F0F0F0F
PIECE = 1 << 19  # elements that are converted at a time, so that they stay in the cache


class Scales(NamedTuple):
    """Scales and minimums [rows, groups]: float16 or float32, or int8 with float16 factors [rows, blocks]."""

    scales: Tensor
    minimums: Tensor | None = None
    factors: Tensor | None = None  # of the scales, one for every BLOCK columns
    minimum_factors: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Scales":
        scales, *others = self
        return Scales(function(scales), *(None if each is None else function(each) for each in others))


@dataclass(frozen=True)
class Codes:
    """A matrix as integers: q uint8 [rows, columns]."""

    q: Tensor
    bits: int  # 4, 5, 6 or 8
    group: int  # columns per scale
    scales: Scales
    zero: int = 0
    table: tuple[int, ...] | None = None  # what a 4-bit code stands for, from 0 to 255

    def by_rows(self, rows: int) -> "Codes":
        """The same integers as a matrix of fewer rows."""
        return replace(self, q=self.q.view(rows, -1), scales=self.scales.map(lambda each: each.reshape(rows, -1)))

    def dequantize(self, out: Tensor) -> Tensor:
        """Write the weights to `out`, float32 [rows, columns]; the columns must be whole groups."""
        if self.table is None:
            out.copy_(self.q)
        else:
            out.copy_(torch.tensor(self.table, dtype=torch.uint8)[self.q.int()])
        if self.zero:
            out.sub_(self.zero)
        scales, minimums, factors, minimum_factors = self.scales
        grouped = out.view(len(out), scales.shape[1], -1)
        grouped.mul_(_times(scales, factors)[..., None])
        if minimums is not None:
            grouped.add_(_times(minimums, minimum_factors)[..., None])
        return out


@dataclass(frozen=True)
class Tiles(Packed):
    """A matrix, or a stack of them whose rows are multiples of a tile's."""

    codes: Tensor  # int32 [..., tiles, units, 8 or 4 words, ROWS]
    high: Tensor | None  # the fifth bits, or the fifth and sixth ones: int32 [..., tiles, units, 1 or 2, ROWS]
    scales: Tensor  # [..., tiles, groups, ROWS], and so are the next three
    minimums: Tensor | None
    factors: Tensor | None
    minimum_factors: Tensor | None
    rows: int
    inputs: int
    bits: int
    group: int
    zero: int
    table: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-4], self.rows, self.inputs)

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> "Tiles":
        stack = super().unflatten(dim, sizes)
        return replace(stack, rows=self.rows // stack.codes.shape[0])

    @classmethod
    def cat(cls, parts: Sequence["Tiles"]) -> "Tiles":
        """All but the last must have whole tiles."""
        return replace(super().cat(parts), rows=sum(part.rows for part in parts))

    def unit(self, name: str, dim: int) -> int:
        raise NotImplementedError("A matrix is cut before it is laid out in tiles.")

    def take(self, rows: Tensor) -> Codes:
        """Some rows of a matrix, whose columns are padded to whole groups."""
        tile, lane = rows // ROWS, rows % ROWS
        words = self.codes[tile, :, :, lane]  # [rows, units, words]
        if self.bits < 8:
            words = torch.cat((words & LOW, words >> 4 & LOW), dim=-1)
        if self.high is not None:
            width = self.bits - 4
            high = self.high[tile, :, :, lane]
            shifts = torch.arange(0, 8, width, dtype=torch.int32)
            parts = (high[..., None] >> shifts & _low_bits(width)).flatten(-2)
            words = words | parts << 4
        q = words.contiguous().view(torch.uint8).view(len(rows), -1)
        if self.scales.shape[-2] > 1:
            q = pad(q, (0, self.scales.shape[-2] * self.group - q.shape[1]))
        scales = Scales(self.scales, self.minimums, self.factors, self.minimum_factors)
        return Codes(q, self.bits, self.group, scales.map(lambda each: each[tile, :, lane]), self.zero, self.table)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        if self.codes.dim() > 4:
            return torch.stack([self[i].dequantize(dtype) for i in range(self.codes.shape[0])])
        result = torch.empty(self.rows, self.inputs, dtype=dtype)
        for rows in torch.arange(self.rows).split(max(1, PIECE // self.inputs)):
            codes = self.take(rows)
            result[rows] = codes.dequantize(torch.empty(codes.q.shape))[:, : self.inputs].to(dtype)
        return result


@dataclass(frozen=True)
class Table(Tiles):
    """A matrix of which a step looks up rows, in `dtype`; it may be multiplied too."""

    dtype: torch.dtype = torch.float32

    def look_up(self, rows: Tensor) -> Tensor:
        codes = self.take(rows)
        return codes.dequantize(torch.empty(codes.q.shape))[:, : self.inputs].to(self.dtype)


def tile(codes: Codes) -> Tiles:
    """Lay out a matrix in tiles; rows and columns are padded."""
    rows, columns = codes.q.shape
    q = pad(codes.q, (0, -columns % UNIT, 0, -rows % ROWS))
    words = q.view(torch.int32).view(-1, ROWS, q.shape[1] // UNIT, UNIT // 4).permute(0, 2, 3, 1)
    high: Tensor | None = None
    if codes.bits in (5, 6):
        width = codes.bits - 4
        parts = (words >> 4 & _low_bits(width)).unflatten(2, (width, -1))
        shifts = torch.arange(0, 8, width, dtype=torch.int32)[:, None]
        high = (parts << shifts).sum(dim=3, dtype=torch.int32)
    if codes.bits < 8:
        words = words[:, :, :4] & LOW | (words[:, :, 4:] & LOW) << 4
    scales = codes.scales.map(by_tiles)
    return Tiles(words.contiguous(), high, *scales, rows, columns, codes.bits, codes.group, codes.zero, codes.table)


def tileable(weight: Weight) -> TypeGuard[Int4 | Int8]:
    """Whether `as_tiles` takes a weight: a matrix whose groups are 1, 2, 4, 8 ... units or whole rows."""
    if not isinstance(weight, Int4 | Int8) or len(weight.shape) != 2 or not weight.scales.is_cpu:
        return False
    units, rest = divmod(weight.group, UNIT)
    return weight.group >= weight.shape[1] or (rest == 0 and units.bit_count() == 1)


def as_tiles(weight: Int4 | Int8) -> Tiles:
    """The same matrix in tiles."""
    rows, columns = weight.shape
    step = max(1, PIECE // columns // ROWS) * ROWS
    parts = (weight.narrow(0, first, min(step, rows - first)) for first in range(0, rows, step))
    return collect(rows, (tile(_codes(part)) for part in parts))


def join(parts: Sequence[Packed]) -> list[Packed]:
    """Matrices of one format as a single one; tiles only if all but the last are whole."""
    if any(isinstance(part, Tiles) and part.rows % ROWS for part in parts[:-1]):
        return list(parts)
    return [type(parts[0]).cat(parts)]


def collect(rows: int, pieces: Iterable[Tiles], empty: Callable[..., Tensor] = torch.empty) -> Tiles:
    """Join pieces of a matrix, of whole tiles but for the last; only one is held twice. `empty` is as torch's."""
    whole: Tiles | None = None
    tiles, first = -(-rows // ROWS), 0
    for piece in pieces:
        if whole is None:
            whole = replace(piece.map(lambda t: empty((tiles, *t.shape[1:]), dtype=t.dtype)), rows=rows)
        for target, part in zip(whole.tensors().values(), piece.tensors().values(), strict=True):
            target[first : first + len(part)] = part
        first += len(piece.codes)
    assert whole is not None
    return whole


def _codes(weight: Int4 | Int8) -> Codes:
    if isinstance(weight, Int8):
        return Codes(weight.values.view(torch.uint8) ^ 128, 8, weight.group, Scales(weight.scales), zero=128)
    q = int4.unpack(weight.words)[:, : weight.inputs].to(torch.uint8)
    zero = int4.ZERO if weight.minimums is None else 0
    return Codes(q, 4, weight.group, Scales(weight.scales, weight.minimums), zero=zero)


def by_tiles(rows: Tensor, empty: Callable[..., Tensor] = torch.empty) -> Tensor:
    """Scales [rows, n] as [tiles, n, ROWS], in memory of `empty`, which is as torch's."""
    padding = -len(rows) % ROWS
    tiles = (pad(rows, (0, 0, 0, padding)) if padding else rows).view(-1, ROWS, rows.shape[1]).transpose(1, 2)
    return empty(tuple(tiles.shape), dtype=rows.dtype).copy_(tiles)


def _low_bits(width: int) -> int:
    """The lowest `width` bits of each byte of a word."""
    return 0x01010101 * ((1 << width) - 1)


def _times(values: Tensor, factors: Tensor | None) -> Tensor:
    if factors is None:
        return values.float()
    return values.float() * factors.float().repeat_interleave(values.shape[1] // factors.shape[1], dim=1)
