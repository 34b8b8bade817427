"""Weights in bit planes: dequantized in one pass, whole or some rows of them, and products that unpack in registers.

A product of all rows of x with one matrix, and of pairs of token and expert with a stack of matrices, are one kernel: a
program has a tile of a matrix's outputs and loops over the rows of x that belong to the matrix.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.grouped_matmul import Groups
from genwright.kernels.triton.jit import jit
from genwright.quant.bit_planes import BitPlanes
from genwright.quant.tiles import BLOCK

ROWS, COLUMNS = 16, 256  # per program of `unpack_planes`


def unpack_planes(weight: BitPlanes, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
    """All rows or those numbered `rows`, bit for bit what `dequantize` gives."""
    n, k = weight.shape
    n = n if rows is None else len(rows)
    out = torch.empty(n, k, dtype=dtype, device=weight.scales.device)
    _unpack[(triton.cdiv(k, COLUMNS), triton.cdiv(n, ROWS))](
        *_planes(weight), rows, out, n, k, **_code(weight), BLOCK_N=ROWS, BLOCK_K=COLUMNS,
        enable_fp_fusion=False,  # `dequantize` rounds q * scale before it adds the minimum
    )  # fmt: skip
    return out


def planes_matmul(x: Tensor, weight: BitPlanes, bias: Tensor | None = None, deterministic: bool = False) -> Tensor:
    """x [rows, inputs] times the transpose of weight [outputs, inputs], summed in float32 to [rows, outputs].

    `deterministic` keeps the tile height at 16, so that a row's bits do not depend on the number of rows.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    return _matmul(x, weight, None, len(x), 16 if deterministic else len(x), bias)


def grouped_planes_matmul(x: Tensor, weight: BitPlanes, groups: Groups, share: int, pdl: bool = False) -> Tensor:
    """Each pair's row of x times the transpose of its expert's matrix; the arguments are those of `grouped_matmul`."""
    return _matmul(x, weight, groups, len(groups.order), share, None, pdl)


def _matmul(
    x: Tensor, weight: BitPlanes, groups: Groups | None, rows: int, tile: int, bias: Tensor | None, pdl: bool = False
) -> Tensor:
    """`rows` of the result, of which a matrix is expected to have `tile`."""
    n, k = weight.shape[-2:]
    assert x.stride(1) == 1 and x.shape[1] == k and rows % len(x) == 0
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    wide = x.dtype == torch.float32
    height, outputs = min(32 if wide else 128, max(16, triton.next_power_of_2(tile))), 64 if n > 8192 else 32
    columns = 32 if wide else 128 if height <= 64 else 64
    order, ends = (None, None) if groups is None else (groups.order, groups.ends)
    experts = 1 if groups is None else len(groups.ends)
    _product[(triton.cdiv(n, outputs), experts)](
        x, *_planes(weight), bias, order, ends, y, len(y), n, k, x.stride(0), SHARE=rows // len(x), **_code(weight),
        BLOCK_M=height, BLOCK_N=outputs, BLOCK_K=columns, PDL=pdl,
        num_warps=4, num_stages=1 if wide else 4, launch_pdl=pdl,
    )  # fmt: skip
    return y


def _planes(weight: BitPlanes) -> tuple[Tensor | None, ...]:
    planes = weight.nibbles, weight.pairs, weight.singles, weight.scales, weight.factors
    assert all(plane is None or plane.is_contiguous() for plane in planes)
    return planes


def _code(weight: BitPlanes) -> dict[str, int]:
    """How the kernels read codes; a table is two words of eight bytes."""
    low, high = (
        0 if weight.table is None else int.from_bytes(bytes(weight.table[i : i + 8]), "little", signed=True)
        for i in (0, 8)
    )
    code = {"BITS": weight.bits, "GROUP": weight.group, "ZERO": weight.zero, "PER": weight.per_group}
    return {**code, "TABLE": weight.table is not None, "LOW": low, "HIGH": high, "BLOCK": BLOCK}


@jit
def _unpack(
    nibbles, pairs, singles, scales, factors, rows, out, N, K,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, PER: tl.constexpr,
    TABLE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * BLOCK_K
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = start + tl.arange(0, BLOCK_K)
    row = tl.minimum(n, N - 1).to(tl.int64)  # rows past the end read the last row; their results are not stored
    source = row
    if rows is not None:
        source = tl.load(rows + row).to(tl.int64)
    w = _weights(
        nibbles, pairs, singles, scales, factors, source, start, K, BITS, GROUP, ZERO, PER, TABLE, LOW, HIGH, BLOCK,
        BLOCK_K, out.dtype.element_ty,
    )  # fmt: skip
    tl.store(out + row[:, None] * K + k[None, :], w, (n < N)[:, None] & (k < K)[None, :])


@jit(do_not_specialize=["M"])
def _product(
    x, nibbles, pairs, singles, scales, factors, bias, order, ends, y, M, N, K, x_stride, SHARE: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, PER: tl.constexpr,
    TABLE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # x [M / SHARE, K], a matrix of N rows for each expert -> y [M, N]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dtype: tl.constexpr = x.dtype.element_ty
    expert = tl.program_id(1)
    begin, end = 0, M
    if ends is not None:
        end = tl.load(ends + expert)
        begin = tl.load(ends + expert - 1, expert > 0, 0)
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    row = expert.to(tl.int64) * N + tl.minimum(n, N - 1)  # rows past the end read the last row
    for top in range(begin, end, BLOCK_M):
        m = top + tl.arange(0, BLOCK_M)
        pair = m.to(tl.int64)
        if order is not None:
            pair = tl.load(order + m, m < end, 0).to(tl.int64)
        x_at = x + (pair // SHARE)[:, None] * x_stride + k[None, :]
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)  # the weight on the left, because it comes from registers
        for start in range(0, K, BLOCK_K):
            xs = tl.load(x_at + start, (m < end)[:, None] & (start + k < K)[None, :], 0.0)
            w = _weights(
                nibbles, pairs, singles, scales, factors, row, start, K, BITS, GROUP, ZERO, PER, TABLE, LOW, HIGH,
                BLOCK, BLOCK_K, dtype,
            )  # fmt: skip
            acc = tl.dot(w, tl.trans(xs), acc, input_precision="ieee")
        if bias is not None:
            acc += tl.load(bias + tl.minimum(n, N - 1)).to(tl.float32)[:, None]
        tl.store(y + pair[None, :] * N + n[:, None], acc.to(dtype), (m < end)[None, :] & (n < N)[:, None])


@jit
def _weights(
    nibbles, pairs, singles, scales, factors, row, start, K,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, PER: tl.constexpr,
    TABLE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    # Columns start to start + BLOCK_K of the rows row [N]: [N, BLOCK_K]. A word of nibbles has eight columns; columns
    # past the end are 0.
    row = row[:, None]
    word = start // 8 + tl.arange(0, BLOCK_K // 8)[None, :]
    inside = word < K // 8
    nibble, pair, single = 0, 0, 0
    if BITS >= 4:
        nibble = tl.load(nibbles + row * (K // 8) + word, inside, 0)
    if BITS // 2 % 2:
        pair = tl.load(pairs + row * (K // 16) + word // 2, inside, 0) >> (4 * (word % 2))
    if BITS % 2:
        single = tl.load(singles + row * (K // 32) + word // 4, inside, 0) >> (2 * (word % 4))
    scale_at = scales + row * (K // GROUP * PER) + word // (GROUP // 8) * PER
    scale = tl.load(scale_at, inside, 0).to(tl.float32)
    low = 0.0
    if PER == 2:
        low = tl.load(scale_at + 1, inside, 0).to(tl.float32)
    if factors is not None:
        factor_at = factors + row * (K // BLOCK * PER) + word // (BLOCK // 8) * PER
        scale *= tl.load(factor_at, inside, 0).to(tl.float32)
        if PER == 2:
            low *= tl.load(factor_at + 1, inside, 0).to(tl.float32)
    w0 = _weight(0, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w1 = _weight(1, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w2 = _weight(2, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w3 = _weight(3, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w4 = _weight(4, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w5 = _weight(5, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w6 = _weight(6, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    w7 = _weight(7, nibble, pair, single, scale, low, BITS, ZERO, PER, TABLE, LOW, HIGH, dtype)
    even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
    odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
    return tl.reshape(tl.join(even, odd), [w0.shape[0], BLOCK_K])


@jit
def _weight(
    i: tl.constexpr, nibble, pair, single, scale, low, BITS: tl.constexpr, ZERO: tl.constexpr, PER: tl.constexpr,
    TABLE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    # Weight i of each word, whose nibble is number i / 2 + 4 (i % 2), in the order of quant/bit_planes.py.
    number: tl.constexpr = i // 2 + 4 * (i % 2)
    byte: tl.constexpr = number // 2 * 8
    half: tl.constexpr = number % 2
    if BITS >= 4:
        q = nibble >> (4 * number) & 15
        if BITS == 5:
            q |= (single >> (byte + half) & 1) << 4
        elif BITS == 6:
            q |= (pair >> (byte + 2 * half) & 3) << 4
    else:
        q = pair >> (byte + 2 * half) & 3
        if BITS == 3:
            q |= (single >> (byte + half) & 1) << 2
    if TABLE:
        eight = tl.where(q < 8, tl.full([], LOW, tl.int64), tl.full([], HIGH, tl.int64))
        q = (eight >> ((q & 7) * 8).to(tl.int64)).to(tl.int32) & 255
    # In the mantissa of 2^23, q needs no conversion instruction, which would have an eighth of the throughput.
    w = ((q | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)) * scale
    if PER == 2:
        w += low
    return w.to(dtype)
