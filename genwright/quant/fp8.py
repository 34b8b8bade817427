"""FP8 weights: e4m3 values with a scale per block of 128 x 128 (DeepSeek-V3, section 3.3) or per row."""

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
CANDIDATES = 8  # scales that are tried for a row


@dataclass(frozen=True)
class Fp8Blocks(Packed):
    """values [..., rows, columns] in e4m3, scales [..., ceil(rows / height), ceil(columns / width)] in float32."""

    values: Tensor
    scales: Tensor
    height: int = BLOCK  # rows per scale
    width: int = BLOCK  # columns per scale; the number of columns or more for one scale per row

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
        """If a matrix ends inside a block, all blocks are split into lower ones, which repeat the block's scale."""
        height = gcd(*(part.height for part in parts), *(part.shape[0] for part in parts[:-1]))
        return super().cat([part._with_height(height) for part in parts])

    def _with_height(self, height: int) -> "Fp8Blocks":
        scales = self.scales.repeat_interleave(self.height // height, dim=0)
        return replace(self, scales=scales[: -(-self.shape[0] // height)], height=height)


def quantize(weight: Tensor, scale_fmt: str | None = None) -> Fp8Blocks:
    """Quantize a matrix so that each block's largest value maps to 448; `ue8m0` rounds scales up to powers of two."""
    rows, columns = weight.shape
    padded = pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))  # [i, 128, j, 128]
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-4) / LARGEST
    if scale_fmt == "ue8m0":
        scales = scales.log2().ceil().exp2()
    values = (blocks / scales[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return Fp8Blocks(values.to(VALUES).contiguous(), scales)


def quantize_rows(weight: Tensor) -> Fp8Blocks:
    """Quantize a matrix, choosing for each row the candidate scale with the smallest squared error.

    The first candidate maps the row's largest value to 448. At twice that scale the same values would come again.
    """
    weight = weight.float()
    smallest = weight.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / LARGEST
    scales, best = smallest, torch.full_like(smallest, torch.inf, dtype=torch.float64)
    for i in range(CANDIDATES):
        candidate = smallest * 2 ** (i / CANDIDATES)
        errors = (weight / candidate).to(VALUES).float().mul_(candidate).sub_(weight).square_()
        error = errors.sum(dim=-1, keepdim=True, dtype=torch.float64)  # float64, so that all devices choose the same
        scales, best = torch.where(error < best, candidate, scales), torch.minimum(error, best)
    return Fp8Blocks((weight / scales).to(VALUES), scales, 1, weight.shape[-1])


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the block scales of a matrix."""
    return tuple(-(-size // BLOCK) for size in shape)
