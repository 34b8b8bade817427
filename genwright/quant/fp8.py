"""FP8 weights: e4m3 values in blocks of 128 x 128 that share a scale (DeepSeek-V3, section 3.3)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from genwright.quant.packed import Packed

BLOCK = 128
VALUES = torch.float8_e4m3fn
LARGEST = torch.finfo(VALUES).max  # 448


@dataclass(frozen=True)
class Fp8Blocks(Packed):
    """values [..., rows, columns] in e4m3, scales [..., ceil(rows / 128), ceil(columns / 128)] in float32."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return {"values": self.values, "scales": self.scales}

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        rows, columns = self.shape[-2:]
        wide = pad(self.values.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
        blocks = wide.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))  # [..., i, 128, j, 128]
        blocks.mul_(self.scales[..., :, None, :, None])
        return wide[..., :rows, :columns].to(dtype)

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> "Fp8Blocks":
        return Fp8Blocks(self.values.unflatten(dim, sizes), self.scales.unflatten(dim, sizes))

    def __getitem__(self, index: int | torch.Tensor) -> "Fp8Blocks":
        # As bytes: not every device has indexing for 8-bit floats.
        return Fp8Blocks(self.values.view(torch.uint8)[index].view(VALUES), self.scales[index])


def quantize(weight: torch.Tensor, scale_fmt: str | None = None) -> Fp8Blocks:
    """Round a matrix so that each block's largest value is e4m3's; `ue8m0` makes scales powers of two."""
    rows, columns = weight.shape
    wide = pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = wide.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))  # [i, 128, j, 128]
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-4) / LARGEST
    if scale_fmt == "ue8m0":
        scales = scales.log2().ceil().exp2()
    values = (blocks / scales[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return Fp8Blocks(values.to(VALUES).contiguous(), scales)


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the scales of a matrix."""
    return tuple(-(-size // BLOCK) for size in shape)
