"""Bit planes: integer weights of 2 to 6 bits, row by row, the layout that the GPU kernels multiply.

A weight is (q - z) s + m, or (table[q] - z) s + m, where q has no sign. Its lowest four bits are in a plane of nibbles,
the others in planes of pairs and of single bits; codes of fewer than four bits have no nibbles. A chunk of 32 columns
has four words of nibbles, two of pairs and one of single bits. Word j of nibbles holds eight weights in the order of
int4's, so that `word >> 4 o & 0x0F0F0F0F` for o of 0 and 1 are four of them, one to a byte. The pair of each is in the
same byte of word j / 2 of its plane, at bit 4 (j % 2) + 2 o, and the single bit at bit 2 j + o.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.quant.packed import Packed, spread
from genwright.quant.tiles import BLOCK, Codes

CHUNK = 32  # columns
LOWEST = 0x01010101


@dataclass(frozen=True)
class BitPlanes(Packed):
    """A matrix, or a stack of them; its columns are whole chunks, and whole blocks if it has factors."""

    nibbles: Tensor | None  # int32 [..., rows, 4 * chunks]
    pairs: Tensor | None  # int32 [..., rows, 2 * chunks]
    singles: Tensor | None  # int32 [..., rows, chunks]
    scales: Tensor  # [..., rows, groups], or with minimums [..., rows, 2 * groups]: a scale and a minimum by turns
    factors: Tensor | None  # float16; of the int8 scales and minimums of BLOCK columns
    bits: int
    group: int  # columns per scale, 16 or 32
    zero: int
    minimums: bool
    table: tuple[int, ...] | None = None  # what a 4-bit code stands for, from 0 to 255

    @property
    def per_group(self) -> int:
        """Stored values of a group: a scale, and perhaps a minimum."""
        return 2 if self.minimums else 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.scales.shape[:-1], self.scales.shape[-1] // self.per_group * self.group)

    def unit(self, name: str, dim: int) -> int:
        return 1 if dim == 0 else self.shape[-1] // self.tensors()[name].shape[-1]

    def integers(self) -> Tensor:
        """The codes, uint8 [..., columns]."""
        shape, shift = (*self.scales.shape[:-1], self.shape[-1] // CHUNK, 4, 2), 0
        q = torch.zeros(shape, dtype=torch.int32, device=self.scales.device)
        for bits, plane in ((4, self.nibbles), (2, self.pairs), (1, self.singles)):
            if plane is not None:
                words = plane.unflatten(-1, (-1, bits, 1, 1)) >> _shifts(bits, plane.device)
                q |= (words & LOWEST * ((1 << bits) - 1)).reshape(shape) << shift
                shift += bits
        return q[..., None].view(torch.uint8).unflatten(-1, (2, 2)).movedim(-1, -3).flatten(-5)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        q, columns = self.integers(), self.shape[-1]
        wide = q.float() if self.table is None else torch.tensor(self.table, device=q.device).float()[q.int()]
        scales = self.scales.float()
        if self.factors is not None:
            factors = self.factors.float().unflatten(-1, (-1, 1, self.per_group))
            scales = (scales.unflatten(-1, (-1, BLOCK // self.group, self.per_group)) * factors).flatten(-3)
        scales, *minimums = scales.unflatten(-1, (-1, self.per_group)).unbind(-1)
        wide.sub_(self.zero).mul_(spread(scales, self.group, columns))
        for each in minimums:
            wide.add_(spread(each, self.group, columns))
        return wide.to(dtype)


def bit_planes(codes: Codes) -> BitPlanes:
    """A matrix of integers in bit planes; its columns are whole chunks."""
    q, bits = codes.q, codes.bits
    # [rows, chunks, word, half of the four neighbours, pair in it, odd] -> the order of bytes in a word, and o before
    by_bytes = q.view(len(q), -1, 4, 2, 2, 2).permute(0, 1, 2, 4, 5, 3).flatten(-2)
    words = by_bytes.view(torch.int32).squeeze(-1)
    planes: dict[int, Tensor] = {}
    for width in (4, 2, 1):
        if bits & width:
            part = words & LOWEST * ((1 << width) - 1)
            words = words >> width & LOWEST * ((1 << 8 - width) - 1)
            part = part.unflatten(2, (width, -1)) << _shifts(width, q.device)
            planes[width] = part.sum(dim=(-1, -2), dtype=torch.int32).flatten(1)
    scales, minimums, factors, minimum_factors = codes.scales
    if minimums is not None:
        scales = torch.stack((scales, minimums), dim=-1).flatten(1)
    if factors is not None and minimum_factors is not None:
        factors = torch.stack((factors, minimum_factors), dim=-1).flatten(1)
    if scales.dtype == torch.float32:
        scales = scales.bfloat16()  # powers of two
    stored = planes.get(4), planes.get(2), planes.get(1), scales.contiguous(), factors
    return BitPlanes(*stored, bits, codes.group, codes.zero, minimums is not None, codes.table)


def _shifts(bits: int, device: torch.device) -> Tensor:
    """Where the words of a plane have the codes of a byte: int32 [words of nibbles per word, 2]."""
    return torch.arange(0, 8, bits, dtype=torch.int32, device=device).view(-1, 2)
