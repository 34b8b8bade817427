"""Products of fp8 weights with inputs that are rounded to fp8 too, with a scale per 128 columns (DeepSeek-V3, 3.3)."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from genwright.kernels.triton.jit import jit
from genwright.quant.fp8 import BLOCK, LARGEST, VALUES, Fp8Blocks
from genwright.quant.packed import Weight

SMALLEST = 1e-4  # what the largest value of 128 columns is taken for, at least


@jit
def _quantize(
    x, values, scales, x_stride, columns, scale_stride, largest, smallest,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Program (row, GROUPS groups of BLOCK columns)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    i = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    y = tl.load(x + row * x_stride + i, i < columns, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(y), 1), smallest) / largest
    tl.store(scales + group * scale_stride + row, scale, group * BLOCK < columns)
    tl.store(values + row * columns + i, (y / scale[:, None]).to(values.dtype.element_ty), i < columns)


def quantize_inputs(x: Tensor, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """x [rows, columns] as e4m3 values, and float32 scales [rows, columns / 128], column by column in memory.

    The largest value of 128 columns becomes 448. Rows are padded to a multiple of 4 for cuBLAS.
    """
    rows, columns = x.shape
    assert x.stride(1) == 1
    padded, groups = -(-rows // 4) * 4, triton.cdiv(columns, BLOCK)
    values = torch.empty(padded, columns, dtype=VALUES, device=x.device)
    scales = torch.empty(groups, padded, dtype=torch.float32, device=x.device)
    _quantize[(rows, triton.cdiv(groups, 8))](
        x, values, scales, x.stride(0), columns, padded, LARGEST, SMALLEST, BLOCK=BLOCK, GROUPS=8, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return values, scales.t()


def serves(x: Tensor, weight: Weight) -> bool:
    """Whether cuBLAS multiplies the weight in its blocks: on a Hopper GPU, by inputs in bfloat16."""
    if (
        not isinstance(weight, Fp8Blocks)
        or (weight.height, weight.width) != (BLOCK, BLOCK)
        or x.dtype != torch.bfloat16
    ):
        return False
    rows, columns = weight.shape[-2:]
    return rows % 16 == 0 and columns % (4 * BLOCK) == 0 and _is_hopper(x.device)


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def fp8_linear(x: Tensor, weight: Fp8Blocks, bias: Tensor | None = None, pdl: bool = False) -> Tensor:
    """round(x) W^T + bias: x [tokens, columns] to [tokens, rows]."""
    values, scales = quantize_inputs(x, pdl)
    y = scaled_mm(
        values, weight.values.t(), scales, ScalingType.BlockWise1x128, weight.scales.t(), ScalingType.BlockWise128x128,
        output_dtype=x.dtype,
    )[: len(x)]  # fmt: skip
    return y if bias is None else y + bias
