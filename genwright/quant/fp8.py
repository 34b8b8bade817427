"""FP8 weights: e4m3 values that share a scale in blocks of 128 x 128 (DeepSeek-V3, section 3.3), or in rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.quant.packed import Packed, spread

BLOCK = 128
VALUES = torch.float8_e4m3fn
LARGEST = torch.finfo(VALUES).max  # 448
TRIED = 8  # scales of a row


@dataclass(frozen=True)
class Fp8Blocks(Packed):
    """values [..., rows, columns] in e4m3, scales [..., ceil(rows / height), ceil(columns / width)] in float32."""

    values: Tensor
    scales: Tensor
    height: int = BLOCK  # rows per scale
    width: int = BLOCK  # columns per scale; at least all of them where a row has one scale

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def unit(self, name: str, dim: int) -> int:
        return 1 if name == "values" else (self.height, self.width)[dim]

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        rows, columns = self.shape[-2:]
        scales = spread(self.scales, self.width, columns).repeat_interleave(self.height, dim=-2)[..., :rows, :]
        return self.values.float().mul_(scales).to(dtype)

    @classmethod
    def cat(cls, parts: Sequence["Fp8Blocks"]) -> "Fp8Blocks":
        """Where a matrix ends within a block, all blocks are cut lower, each piece with the scale of its block."""
        height = gcd(*(part.height for part in parts), *(part.shape[0] for part in parts[:-1]))
        return super().cat([part._cut(height) for part in parts])

    def _cut(self, height: int) -> "Fp8Blocks":
        scales = self.scales.repeat_interleave(self.height // height, dim=0)
        return replace(self, scales=scales[: -(-self.shape[0] // height)], height=height)


def quantize(weight: Tensor, scale_fmt: str | None = None) -> Fp8Blocks:
    """Round a matrix so that each block's largest value is e4m3's; `ue8m0` makes scales powers of two."""
    rows, columns = weight.shape
    wide = pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = wide.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))  # [i, 128, j, 128]
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-4) / LARGEST
    if scale_fmt == "ue8m0":
        scales = scales.log2().ceil().exp2()
    values = (blocks / scales[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return Fp8Blocks(values.to(VALUES).contiguous(), scales)


def quantize_rows(weight: Tensor) -> Fp8Blocks:
    """Round a matrix, each row with the scale that loses least of some.

    The smallest makes the row's largest value e4m3's. From twice that on the same values would come again.
    """
    wide = weight.float()
    smallest = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / LARGEST
    scales, least = smallest, torch.full_like(smallest, torch.inf, dtype=torch.float64)
    for i in range(TRIED):
        tried = smallest * 2 ** (i / TRIED)
        errors = (wide / tried).to(VALUES).float().mul_(tried).sub_(wide).square_()
        lost = errors.sum(dim=-1, keepdim=True, dtype=torch.float64)  # so exact that every device chooses alike
        scales, least = torch.where(lost < least, tried, scales), torch.minimum(lost, least)
    return Fp8Blocks((wide / scales).to(VALUES), scales, 1, weight.shape[-1])


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the scales of a matrix."""
    return tuple(-(-size // BLOCK) for size in shape)
