"""RMSNorm, the gate of a gated MLP and rows of a table, one launch each, rounded where plain PyTorch rounds."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit


@jit
def normed_row(x, weight, x_stride, dim, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    # The norm of row program_id(0) of x [rows, dim], rounded to the type of x, as float32 [BLOCK]
    i = tl.arange(0, BLOCK)
    w = tl.load(weight + i, i < dim, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + tl.program_id(0).to(tl.int64) * x_stride + i, i < dim, 0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
    dtype: tl.constexpr = x.dtype.element_ty
    normed = (values * factor).to(dtype).to(tl.float32)
    return (normed * w).to(dtype).to(tl.float32)


@jit
def _rms_norm(x, weight, y, dim, x_stride, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    normed = normed_row(x, weight, x_stride, dim, eps, BLOCK, PDL)
    i = tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0).to(tl.int64) * dim + i, normed.to(y.dtype.element_ty), i < dim)


@jit
def gated_columns(gate_up, row, i, ffn):
    # silu(gate) * up of columns i of a row of gate_up [rows, 2 ffn], rounded to the type of gate_up, as float32
    gate = tl.load(gate_up + row * 2 * ffn + i, i < ffn, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * ffn + ffn + i, i < ffn, 0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(gate_up.dtype.element_ty).to(tl.float32)
    return (silu * up).to(gate_up.dtype.element_ty).to(tl.float32)


@jit
def _silu_mul(gate_up, y, ffn, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + row * ffn + i, gated_columns(gate_up, row, i, ffn).to(y.dtype.element_ty), i < ffn)


@jit
def _take_rows(rows, table, y, dim, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.load(rows + tl.program_id(0))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0).to(tl.int64) * dim + i, tl.load(table + row * dim + i, i < dim), i < dim)


def rms_norm(x: Tensor, weight: Tensor, eps: float, pdl: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension: x [rows, dim]."""
    rows, dim = x.shape
    assert x.stride(1) == 1 and weight.dtype == x.dtype
    y = torch.empty(rows, dim, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(dim)
    _rms_norm[(rows,)](
        x, weight, y, dim, x.stride(0), eps,
        BLOCK=block, PDL=pdl, num_warps=norm_warps(block), enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return y


def norm_warps(block: int) -> int:
    """Warps for a row of so many columns; the order in which its squares are added depends on them."""
    return min(max(block // 512, 1), 16)


def silu_mul(gate_up: Tensor, pdl: bool = False) -> Tensor:
    """silu(gate) * up: gate_up [tokens, 2 * ffn], gate first, to [tokens, ffn]."""
    tokens, ffn = len(gate_up), gate_up.shape[1] // 2
    assert gate_up.is_contiguous()
    y = torch.empty(tokens, ffn, dtype=gate_up.dtype, device=gate_up.device)
    block = 1024
    _silu_mul[(tokens, triton.cdiv(ffn, block))](gate_up, y, ffn, BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl)
    return y


def take_rows(rows: Tensor, table: Tensor, pdl: bool = False) -> Tensor:
    """table[rows]: rows int64 [n], contiguous, and table [size, dim], to [n, dim]."""
    dim, block = table.shape[1], 1024
    assert rows.dtype == torch.int64 and rows.is_contiguous() and table.is_contiguous()
    y = torch.empty(len(rows), dim, dtype=table.dtype, device=table.device)
    _take_rows[(len(rows), triton.cdiv(dim, block))](
        rows, table, y, dim, BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl
    )
    return y
