"""Weight formats as the Triton kernels see them: the tensors of each format, and dequantization in registers."""

import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Weight


def parts(weight: Weight) -> tuple[Tensor, Tensor | None, Tensor | None, int, int]:
    """Stored values, scales, minimums, and the number of rows and columns that share a scale."""
    if isinstance(weight, Int4):
        return weight.words, weight.scales, weight.minimums, 1, weight.group
    if isinstance(weight, Int8):
        return weight.values, weight.scales, None, 1, weight.group
    if isinstance(weight, Fp8Blocks):
        return weight.values, weight.scales, None, weight.height, weight.width
    assert isinstance(weight, Tensor)
    return weight, None, None, 1, weight.shape[1]


@jit
def load_scales(
    scales, row, start, groups, COLUMNS: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr
):
    # The scale [outputs, COLUMNS / PER] of each stored value (PER weights) in columns start to start + COLUMNS.
    # row [outputs] is where a row's scales begin. UNIT divides WIDTH, so UNIT columns always share a scale.
    unit = tl.arange(0, COLUMNS // UNIT)
    group = start // WIDTH + unit if UNIT == WIDTH else (start + unit * UNIT) // WIDTH
    s = tl.load(scales + row[:, None] + group[None, :], (group < groups)[None, :], 0.0)
    repeated = tl.broadcast_to(s[:, :, None], [s.shape[0], s.shape[1], UNIT // PER])
    return tl.reshape(repeated, [s.shape[0], COLUMNS // PER])


@jit
def widen(q, scale, low, INT4: tl.constexpr, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, dtype: tl.constexpr):
    # q [outputs, values] -> [outputs, columns] in `dtype`; scale and low, if used, broadcast to q's shape
    if INT4:
        w = _join(
            _nibbles(q, 0, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 1, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 2, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 3, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 4, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 5, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 6, scale, low, SCALED, MINIMUMS, dtype),
            _nibbles(q, 7, scale, low, SCALED, MINIMUMS, dtype),
        )
    elif SCALED:
        w = q.to(dtype) * scale.to(dtype)
    else:
        w = q.to(dtype)
    return w


@jit
def _nibbles(words, i: tl.constexpr, scale, low, SCALED: tl.constexpr, MINIMUMS: tl.constexpr, dtype: tl.constexpr):
    # Weight i of each word. Putting q into the low mantissa bits of ONE gives ONE + q without a conversion instruction;
    # in 16 bits, one instruction does this for both halves of a word.
    ONE: tl.constexpr = 128.0 if dtype == tl.bfloat16 else 1024.0 if dtype == tl.float16 else 8388608.0
    if dtype == tl.float32:
        w = (((words >> (4 * i)) & 15) | 0x4B000000).to(tl.float32, bitcast=True)
    else:
        pair = ((words >> (4 * (i % 4))) & 0x000F000F) | (0x43004300 if dtype == tl.bfloat16 else 0x64006400)
        w = (pair >> 16 if i >= 4 else pair).to(tl.int16).to(dtype, bitcast=True)
    if MINIMUMS:  # in float32, because rounding the minimum to 16 bits would be a large error for small weights
        w = ((w - ONE).to(tl.float32) * scale.to(tl.float32) + low.to(tl.float32)).to(dtype)
    elif SCALED:
        w = (w - (ONE + 8.0)) * scale.to(dtype)
    else:
        w = w - (ONE + 8.0)
    return w


@jit
def _join(q0, q1, q2, q3, q4, q5, q6, q7):
    # Nibbles i and i + 4 [outputs, words] are weights 2 i and 2 i + 1 of the word's eight -> [outputs, 8 words]
    even = tl.join(tl.join(q0, q2), tl.join(q1, q3))
    odd = tl.join(tl.join(q4, q6), tl.join(q5, q7))
    return tl.reshape(tl.join(even, odd), [q0.shape[0], q0.shape[1] * 8])
