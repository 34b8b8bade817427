"""int8 weights: w = q s with |q| <= 127 and a scale per row or per group of columns (32 in GGUF's Q8_0)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.quant.packed import Packed, in_groups, spread

LARGEST = 127


@dataclass(frozen=True)
class Int8(Packed):
    """values int8 [..., rows, columns], scales [..., rows, groups]; the last group may be shorter."""

    values: Tensor
    scales: Tensor
    group: int  # columns per scale; the number of columns or more for one scale per row

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def unit(self, name: str, dim: int) -> int:
        return self.group if name == "scales" and dim == 1 else 1

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        return self.values.float().mul_(spread(self.scales, self.group, self.shape[-1])).to(dtype)


def quantize(weight: Tensor, group: int | None = None, scales_dtype: torch.dtype = torch.float32) -> Int8:
    """Quantize [..., rows, columns] so that each group's largest value maps to 127; group None is a whole row."""
    columns = weight.shape[-1]
    group = group or columns
    groups = in_groups(weight, group)
    scales = (groups.abs().amax(dim=-1) / LARGEST).to(scales_dtype)
    step = scales.float()[..., None]
    q = (groups / torch.where(step == 0, 1, step)).round_().clamp_(-LARGEST, LARGEST)
    return Int8(q.to(torch.int8).flatten(-2)[..., :columns].contiguous(), scales, group)
