"""int4 weights in groups of columns: w = (q - 8) s, or with a minimum per group w = q s + m, where 0 <= q <= 15.

A 32-bit word holds eight weights, the even ones in its lower half: nibble i is weight 2 i and nibble i + 4 is weight
2 i + 1, so that `word >> 4 i & 0x000F000F` is a pair of neighbours.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.quant.packed import Packed, in_groups, spread

WORD = 8  # weights per word
ZERO = 8  # the q of weight 0 without minimums
LARGEST = 15
PAIR = 0x000F000F


@dataclass(frozen=True)
class Int4(Packed):
    """words int32 [..., rows, ceil(columns / 8)], scales and minimums [..., rows, groups]."""

    words: Tensor
    scales: Tensor
    minimums: Tensor | None
    inputs: int  # columns; the padding nibbles after them are 0
    group: int  # columns per scale, a multiple of 8; the last group may be shorter

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.words.shape[:-1], self.inputs)

    def unit(self, name: str, dim: int) -> int:
        return 1 if dim == 0 else WORD if name == "words" else self.group

    def narrow(self, dim: int, start: int, length: int) -> "Int4":
        part = super().narrow(dim, start, length)
        return replace(part, inputs=length) if dim == 1 else part

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        q = unpack(self.words)[..., : self.inputs].float()
        scales = spread(self.scales, self.group, self.inputs)
        if self.minimums is None:
            return q.sub_(ZERO).mul_(scales).to(dtype)
        return q.mul_(scales).add_(spread(self.minimums, self.group, self.inputs)).to(dtype)


def quantize(weight: Tensor, group: int, asymmetric: bool, scales_dtype: torch.dtype = torch.float16) -> Int4:
    """Round [..., rows, columns] to the nearest of its group's 16 values."""
    columns = weight.shape[-1]
    groups = in_groups(weight, group)
    scales, minimums = fit(groups, asymmetric, scales_dtype)
    q = nearest(groups, scales[..., None], None if minimums is None else minimums[..., None])
    return Int4(pack(q.flatten(-2)[..., :columns]), scales, minimums, columns, group)


def fit(groups: Tensor, asymmetric: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Scales and minimums [..., groups] of float32 [..., groups, columns], in the dtype that is stored."""
    if asymmetric:
        minimums = groups.amin(dim=-1).to(dtype)
        return ((groups.amax(dim=-1) - minimums.float()) / LARGEST).to(dtype), minimums
    # A group's values are -8 s to 7 s. The sign of s is chosen so that the value largest in magnitude is -8 s, as Q4_0.
    largest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
    return (largest / -ZERO).to(dtype), None


def nearest(weight: Tensor, scales: Tensor, minimums: Tensor | None) -> Tensor:
    """The q of each weight, as float32; scales and minimums broadcast."""
    step = scales.float()
    step = torch.where(step == 0, 1, step)
    q = weight / step + ZERO if minimums is None else (weight - minimums.float()) / step
    return q.round_().clamp_(0, LARGEST)


def pack(q: Tensor) -> Tensor:
    """Pack q [..., columns] into int32 words [..., ceil(columns / 8)]."""
    pairs = pad(q.to(torch.int32), (0, -q.shape[-1] % WORD)).unflatten(-1, (-1, 4, 2))
    pairs = pairs[..., 0] | pairs[..., 1] << 16
    return pairs[..., 0] | pairs[..., 1] << 4 | pairs[..., 2] << 8 | pairs[..., 3] << 12


def unpack(words: Tensor) -> Tensor:
    """The q of every weight, int16 [..., 8 * words], including padding."""
    pairs = torch.stack([words >> 4 * i & PAIR for i in range(4)], dim=-1)
    return pairs.view(torch.int16).flatten(-2)  # little-endian: the lower half of a word comes first
