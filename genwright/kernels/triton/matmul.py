"""Products of few rows with a weight in any format: the weight is read once and widened in registers.

Formats hold a scale per row, per group of columns or per block. A row's only scale multiplies the finished sum, a scale
that a whole step of columns shares the step's sum, and others the widened weights, in x's type.

The eight weights of an int4 word lie in one thread's registers, so each step's columns are taken in an order in which
that is where the tensor core's operand has them (four lanes to a row, four neighbours to a lane); x's tile is put in the
same order. Nothing goes through shared memory a second time.
"""

# mypy: disable-error-code=no-untyped-def
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed, Weight


@dataclass(frozen=True)
class Tiles:
    """How a product is cut; `columns` is of the weight's inputs."""

    outputs: int
    columns: int
    stages: int
    warps: int


def packed_matmul(
    x: Tensor, weight: Weight, bias: Tensor | None = None, deterministic: bool = False, tiles: Tiles | None = None
) -> Tensor:
    """x [rows, inputs] times the transpose of weight [outputs, inputs], summed in float32: [rows, outputs] in x's type.

    `deterministic` makes a row's bits independent of how many others there are; else more rows take higher tiles.
    """
    (m, k), n = x.shape, weight.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    tiles = tiles or pick_tiles(weight)
    rows = 16 if deterministic else min(64, max(16, triton.next_power_of_2(m)))
    values, scales, minimums, height, width = _parts(weight)
    columns = min(tiles.columns, max(32, triton.next_power_of_2(k)))
    if width >= k:
        scaled = "end"
    else:
        scaled = "step" if width % columns == 0 else "tile"
    scaled = "tile" if minimums is not None else "" if scales is None else scaled
    _matmul[(triton.cdiv(m, rows), triton.cdiv(n, tiles.outputs))](
        x,
        values,
        scales if scales is not None else x,
        minimums if minimums is not None else x,
        bias if bias is not None else x,
        y,
        m,
        n,
        k,
        x.stride(0),
        values.shape[1],
        scales.shape[1] if scales is not None else 0,
        INT4=isinstance(weight, Int4),
        SCALED=scaled,
        MINIMUMS=minimums is not None,
        BIAS=bias is not None,
        HEIGHT=height,
        WIDTH=min(width, triton.next_power_of_2(k)) if width >= k else width,
        UNIT=min(width & -width, columns) if width < k else columns,
        EVEN=k % columns == 0,
        BLOCK_M=rows,
        BLOCK_N=tiles.outputs,
        BLOCK_K=columns,
        num_stages=tiles.stages,
        num_warps=tiles.warps,
    )
    return y


def pick_tiles(weight: Weight) -> Tiles:
    """Enough programs for all of a GPU's processors, each with enough bytes on their way."""
    n = weight.shape[0]
    outputs, warps = (64, 4) if n > 16384 else (32, 4) if n > 4096 else (16, 2)
    return Tiles(outputs, 256 if isinstance(weight, Packed) else 128, 4, warps)


def _parts(weight: Weight) -> tuple[Tensor, Tensor | None, Tensor | None, int, int]:
    """Stored values, scales, minimums, and the rows and columns that share a scale."""
    if isinstance(weight, Int4):
        return weight.words, weight.scales, weight.minimums, 1, weight.group
    if isinstance(weight, Int8):
        return weight.values, weight.scales, None, 1, weight.group
    if isinstance(weight, Fp8Blocks):
        return weight.values, weight.scales, None, weight.height, weight.width
    assert isinstance(weight, Tensor)
    return weight, None, None, 1, weight.shape[1]


@triton.jit
def _matmul(
    x,
    values,
    scales,
    minimums,
    bias,
    y,
    M,
    N,
    K,
    x_stride,
    stride,
    groups,
    INT4: tl.constexpr,
    SCALED: tl.constexpr,
    MINIMUMS: tl.constexpr,
    BIAS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # x [M, K], values [N, stride], scales and minimums [ceil(N / HEIGHT), groups] -> y [M, N]
    DTYPE: tl.constexpr = x.dtype.element_ty
    PER: tl.constexpr = 8 if INT4 else 1  # weights per stored value
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, N - 1).to(tl.int64)  # reads no further than the end; what it gives there is not stored
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // PER)
    u = tl.arange(0, BLOCK_K // UNIT)
    x_at = x + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    value_at = values + row[:, None] * stride + v[None, :]
    scale_row = row // HEIGHT * groups
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN:
            xs = tl.load(x_at + start, (m < M)[:, None], 0.0)
            q = tl.load(value_at + start // PER)
        else:
            xs = tl.load(x_at + start, (m < M)[:, None] & (start + k < K)[None, :], 0.0)
            q = tl.load(value_at + start // PER, (start // PER + v < stride)[None, :], 0.0)
        scale, low = 1.0, 0.0
        if SCALED == "tile":
            group = start // WIDTH + u if UNIT == WIDTH else (start + u * UNIT) // WIDTH
            at, inside = scale_row[:, None] + group[None, :], (group < groups)[None, :]
            scale = _spread(tl.load(scales + at, inside, 0.0), UNIT // PER)
            if MINIMUMS:
                low = _spread(tl.load(minimums + at, inside, 0.0), UNIT // PER)
        w = _widen(q, scale, low, INT4, SCALED == "tile", MINIMUMS, DTYPE)
        if INT4:
            xs = tl.reshape(_word_order(tl.reshape(xs, [BLOCK_M, 4, BLOCK_K // 32, 2, 4])), [BLOCK_M, BLOCK_K])
        if SCALED == "step":
            s = tl.load(scales + scale_row + start // WIDTH).to(tl.float32)
            acc += tl.dot(xs, tl.trans(w), input_precision="ieee") * s[None, :]
        else:
            acc = tl.dot(xs, tl.trans(w), acc, input_precision="ieee")
    if SCALED == "end":
        acc *= tl.load(scales + scale_row).to(tl.float32)[None, :]
    if BIAS:
        acc += tl.load(bias + row).to(tl.float32)[None, :]
    y_at = y + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_at, acc.to(DTYPE), (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _word_order(x):
    # columns as [rows, lane 4, word of the lane, half 2, weight 4]: words' halves of all lanes are neighbours
    return tl.permute(x, [0, 2, 3, 1, 4])


@triton.jit
def _widen(q, scale, low, INT4: tl.constexpr, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, DTYPE: tl.constexpr):
    # q [outputs, values] -> [outputs, columns] in x's type; scale and low are of q's shape where they are used
    if INT4:
        w = _join(
            _nibbles(q, 0, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 1, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 2, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 3, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 4, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 5, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 6, scale, low, SCALED, MINIMUMS, DTYPE),
            _nibbles(q, 7, scale, low, SCALED, MINIMUMS, DTYPE),
        )
    elif SCALED:
        w = q.to(DTYPE) * scale.to(DTYPE)
    else:
        w = q.to(DTYPE)
    return w


@triton.jit
def _spread(s, UNIT: tl.constexpr):
    wide = tl.broadcast_to(s[:, :, None], [s.shape[0], s.shape[1], UNIT])
    return tl.reshape(wide, [s.shape[0], s.shape[1] * UNIT])


@triton.jit
def _nibbles(words, i: tl.constexpr, scale, low, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, DTYPE: tl.constexpr):
    # Weight i of each word. As the low bits of 128 (bfloat16) or 1024 (float16), whose last place is 1, a number needs
    # no conversion, and both halves of a word are widened by one instruction.
    ONE: tl.constexpr = 128.0 if DTYPE == tl.bfloat16 else 1024.0 if DTYPE == tl.float16 else 0.0
    BITS: tl.constexpr = 0x43004300 if DTYPE == tl.bfloat16 else 0x64006400 if DTYPE == tl.float16 else 0
    pair = ((words >> (4 * (i % 4))) & 0x000F000F) | BITS
    half = (pair >> 16 if i >= 4 else pair).to(tl.int16)
    w = half.to(tl.float32) if DTYPE == tl.float32 else half.to(DTYPE, bitcast=True)
    if MINIMUMS:  # in float32: a minimum's rounding would be a large part of the smallest weights
        w = ((w - ONE).to(tl.float32) * scale.to(tl.float32) + low.to(tl.float32)).to(DTYPE)
    elif SCALED:
        w = (w - (ONE + 8.0)) * scale.to(DTYPE)
    else:
        w = w - (ONE + 8.0)
    return w


@triton.jit
def _join(q0, q1, q2, q3, q4, q5, q6, q7):
    # Nibbles i and i + 4 [outputs, words] are weights 2 i and 2 i + 1 of eight -> [outputs, 8 words], in words' order
    even = tl.join(tl.join(q0, q2), tl.join(q1, q3))
    odd = tl.join(tl.join(q4, q6), tl.join(q5, q7))
    words: tl.constexpr = q0.shape[1]
    tile = tl.reshape(tl.join(even, odd), [q0.shape[0], 4, words // 4, 2, 4])
    return tl.reshape(_word_order(tile), [q0.shape[0], words * 8])
