"""Products of fp8 weights with inputs that are rounded to fp8 too, with a scale per 128 columns (DeepSeek-V3, 3.3)."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from genwright.kernels.triton.elementwise import gated_columns, norm_warps, normed_row
from genwright.kernels.triton.jit import jit
from genwright.quant.fp8 import BLOCK, LARGEST, VALUES, Fp8Blocks
from genwright.quant.packed import Weight

SMALLEST = 1e-4  # what the largest value of 128 columns is taken for, at least


Rounded = tuple[Tensor, Tensor]  # e4m3 values and their scales, as `quantize_inputs` returns them
GROUPS = 8  # of 128 columns per program


@jit
def _store_rounded(y, values, scales, row, group, columns, scale_stride, largest, smallest, BLOCK: tl.constexpr):
    # y [groups, BLOCK] in float32 are the columns of a row from group[0] * BLOCK on
    i = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    scale = tl.maximum(tl.max(tl.abs(y), 1), smallest) / largest
    tl.store(scales + group * scale_stride + row, scale, group * BLOCK < columns)
    tl.store(values + row * columns + i, (y / scale[:, None]).to(values.dtype.element_ty), i < columns)


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
    _store_rounded(y, values, scales, row, group, columns, scale_stride, largest, smallest, BLOCK)


@jit
def _quantize_norm(
    x, weight, values, scales, x_stride, columns, scale_stride, eps, largest, smallest,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    y = normed_row(x, weight, x_stride, columns, eps, COLUMNS, PDL)
    group = tl.arange(0, COLUMNS // BLOCK)
    y = tl.reshape(y, [COLUMNS // BLOCK, BLOCK])
    row = tl.program_id(0).to(tl.int64)
    _store_rounded(y, values, scales, row, group, columns, scale_stride, largest, smallest, BLOCK)


@jit
def _quantize_gated(
    gate_up, values, scales, columns, scale_stride, largest, smallest,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    i = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    y = gated_columns(gate_up, row, i, columns)
    _store_rounded(y, values, scales, row, group, columns, scale_stride, largest, smallest, BLOCK)


def quantize_inputs(x: Tensor, pdl: bool = False) -> Rounded:
    """x [rows, columns] as e4m3 values, and float32 scales [rows, columns / 128], column by column in memory.

    The largest value of 128 columns becomes 448. Rows are padded to a multiple of 4 for cuBLAS.
    """
    assert x.stride(1) == 1
    rows, columns = x.shape
    values, scales = _allocate(rows, columns, x.device)
    _quantize[(rows, triton.cdiv(columns, GROUPS * BLOCK))](
        x, values, scales, x.stride(0), columns, len(values), LARGEST, SMALLEST, BLOCK=BLOCK, GROUPS=GROUPS, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return values, scales.t()


def quantize_norm(x: Tensor, weight: Tensor, eps: float, pdl: bool = False) -> Rounded:
    """`quantize_inputs` of `rms_norm`, bit for bit, in one launch."""
    assert x.stride(1) == 1 and weight.dtype == x.dtype
    rows, columns = x.shape
    values, scales = _allocate(rows, columns, x.device)
    padded = max(triton.next_power_of_2(columns), BLOCK)
    _quantize_norm[(rows,)](
        x, weight, values, scales, x.stride(0), columns, len(values), eps, LARGEST, SMALLEST,
        BLOCK=BLOCK, COLUMNS=padded, PDL=pdl, num_warps=norm_warps(padded), enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return values, scales.t()


def quantize_gated(gate_up: Tensor, pdl: bool = False) -> Rounded:
    """`quantize_inputs` of `silu_mul`, bit for bit, in one launch."""
    assert gate_up.is_contiguous()
    rows, columns = len(gate_up), gate_up.shape[1] // 2
    values, scales = _allocate(rows, columns, gate_up.device)
    _quantize_gated[(rows, triton.cdiv(columns, GROUPS * BLOCK))](
        gate_up, values, scales, columns, len(values), LARGEST, SMALLEST, BLOCK=BLOCK, GROUPS=GROUPS, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return values, scales.t()


def _allocate(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    padded = -(-rows // 4) * 4
    values = torch.empty(padded, columns, dtype=VALUES, device=device)
    return values, torch.empty(triton.cdiv(columns, BLOCK), padded, dtype=torch.float32, device=device)


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


def fp8_linear(inputs: Rounded, weight: Fp8Blocks, rows: int, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """x W^T + bias of rounded inputs: [rows, inputs] to [rows, outputs] in `dtype`."""
    values, scales = inputs
    y = scaled_mm(
        values, weight.values.t(), scales, ScalingType.BlockWise1x128, weight.scales.t(), ScalingType.BlockWise128x128,
        output_dtype=dtype,
    )  # fmt: skip
    y = y if len(y) == rows else y[:rows]
    return y if bias is None else y + bias
