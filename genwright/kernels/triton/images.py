"""Kernels for channels-last images: GroupNorm + FiLM + SiLU (+ resampling) in three passes, and the residual sum.

The norm's statistics are (mean, M2) per channel and chunk of pixels, merged by Chan's formula in a fixed order: no
cancellation, and the result does not depend on the batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from genwright.kernels.triton.jit import jit

BLOCK_C = 64


@jit
def _chunk_stats(x, mean, m2, S, C, chunks, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    # x [N, S, C] -> mean, m2 [N, chunks, C]
    chunk, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    s = chunk * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (s < S)[:, None] & (c < C)[None, :]
    tile = tl.load(x + (n * S + s[:, None]) * C + c[None, :], mask, 0.0).to(tl.float32)
    count = tl.minimum(BLOCK_S, S - chunk * BLOCK_S).to(tl.float32)
    average = tl.sum(tile, 0) / count
    centred = tl.where(mask, tile - average[None, :], 0.0)
    out = (n * chunks + chunk) * C + c
    tl.store(mean + out, average, c < C)
    tl.store(m2 + out, tl.sum(centred * centred, 0), c < C)


@jit
def _coefficients(
    mean, m2, weight, bias, add, scale, shift, factor, offset, S, C, chunks, eps, add_stride, film_stride,
    HAS_ADD: tl.constexpr, HAS_FILM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    # Fold the norm, FiLM and the added bias into one factor and offset per image and channel: y = x * factor + offset.
    n = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    j = tl.arange(0, BLOCK_J)
    c = g[:, None] * WIDTH + j[None, :]
    in_c = (g < GROUPS)[:, None] & (j < WIDTH)[None, :]
    k = tl.arange(0, BLOCK_K)
    mask = (k < chunks)[:, None, None] & in_c[None, :, :]
    at = (n * chunks + k)[:, None, None] * C + c[None, :, :]
    means = tl.load(mean + at, mask, 0.0)
    m2s = tl.load(m2 + at, mask, 0.0)
    extra = tl.zeros([BLOCK_G, BLOCK_J], tl.float32)
    if HAS_ADD:
        extra = tl.load(add + n * add_stride + c, in_c, 0.0).to(tl.float32)
        means += extra[None, :, :]
    count = tl.where(mask, tl.minimum(BLOCK_S, S - k * BLOCK_S).to(tl.float32)[:, None, None], 0.0)
    total = S * WIDTH
    centre = tl.sum(tl.sum(means * count, 2), 0) / total
    deviation = means - centre[None, :, None]
    variance = tl.sum(tl.sum(m2s + count * deviation * deviation, 2), 0) / total
    a = tl.rsqrt(variance + eps)[:, None] * tl.load(weight + c, in_c, 0.0)
    b = (extra - centre[:, None]) * a + tl.load(bias + c, in_c, 0.0)
    if HAS_FILM:
        gain = 1.0 + tl.load(scale + n * film_stride + c, in_c, 0.0).to(tl.float32)
        a = a * gain
        b = b * gain + tl.load(shift + n * film_stride + c, in_c, 0.0).to(tl.float32)
    tl.store(factor + n * C + c, a, in_c)
    tl.store(offset + n * C + c, b, in_c)


@jit
def _apply(
    x, y, factor, offset, pixels, width, C,
    NORM: tl.constexpr, SILU: tl.constexpr, RESAMPLE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # y = act(x * factor + offset). "up" repeats each pixel to double the width, "down" averages four to halve it;
    # pixels and width are the output's.
    n = tl.program_id(2).to(tl.int64)
    s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (s < pixels)[:, None] & (c < C)[None, :]
    row, column = s // width, s % width
    if RESAMPLE == "up":
        source = row // 2 * (width // 2) + column // 2
        start = n * (pixels // 4)
    elif RESAMPLE == "down":
        source = row * 2 * (width * 2) + column * 2
        start = n * pixels * 4
    else:
        source = s
        start = n * pixels
    parts: tl.constexpr = 4 if RESAMPLE == "down" else 1
    total = tl.zeros([BLOCK_S, BLOCK_C], tl.float32)
    for part in tl.static_range(parts):
        at = source + part // 2 * (width * 2) + part % 2
        h = tl.load(x + (start + at[:, None]) * C + c[None, :], mask, 0.0).to(tl.float32)
        if NORM:
            a, b = tl.load(factor + n * C + c, c < C, 0.0), tl.load(offset + n * C + c, c < C, 0.0)
            h = h * a[None, :] + b[None, :]
        if SILU:
            h = h * tl.sigmoid(h)
        total += h / parts
    tl.store(y + (n * pixels + s[:, None]) * C + c[None, :], total.to(y.dtype.element_ty), mask)


@jit
def _add_residual(h, x, bias, y, rows, C, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    s = tl.program_id(0).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (s < rows)[:, None] & (c < C)[None, :]
    at = s[:, None] * C + c[None, :]
    total = tl.load(h + at, mask, 0.0).to(tl.float32) + tl.load(x + at, mask, 0.0).to(tl.float32)
    total += tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask)


def norm_act(
    x: Tensor,
    norm: nn.GroupNorm,
    add: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    silu: bool,
    resample: str | None,
) -> Tensor:
    """blocks.norm_act for channels-last x [N, C, H, W]."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, c, height, width = x.shape
    pixels, group_width = height * width, c // norm.num_groups
    block_s = min(128, triton.next_power_of_2(pixels))
    chunks, columns = triton.cdiv(pixels, block_s), triton.cdiv(c, BLOCK_C)
    mean, m2 = torch.empty(2, n, chunks, c, dtype=torch.float32, device=x.device)
    factor, offset = torch.empty(2, n, c, dtype=torch.float32, device=x.device)
    _chunk_stats[(chunks, columns, n)](x, mean, m2, pixels, c, chunks, BLOCK_S=block_s, BLOCK_C=BLOCK_C)
    block_k, block_j = triton.next_power_of_2(chunks), triton.next_power_of_2(group_width)
    block_g = max(1, min(norm.num_groups, 4096 // (block_k * block_j)))
    add_stride = c if add is not None and add.dim() == 2 else 0
    film_stride = 0 if scale is None else scale.stride(0)
    _coefficients[(n, triton.cdiv(norm.num_groups, block_g))](
        mean, m2, norm.weight, norm.bias,
        *(mean if tensor is None else tensor for tensor in (add, scale, shift)),
        factor, offset, pixels, c, chunks, norm.eps, add_stride, film_stride,
        HAS_ADD=add is not None, HAS_FILM=scale is not None, GROUPS=norm.num_groups, WIDTH=group_width,
        BLOCK_S=block_s, BLOCK_K=block_k, BLOCK_G=block_g, BLOCK_J=block_j,
    )  # fmt: skip
    return _launch_apply(x, factor, offset, True, silu, resample)


def resample(x: Tensor, how: str) -> Tensor:
    """blocks.resample for channels-last x [N, C, H, W]."""
    x = x.contiguous(memory_format=torch.channels_last)
    return _launch_apply(x, x, x, False, False, how)


def _launch_apply(x: Tensor, factor: Tensor, offset: Tensor, norm: bool, silu: bool, resample: str | None) -> Tensor:
    n, c, height, width = x.shape
    if resample is not None:
        height, width = (height * 2, width * 2) if resample == "up" else (height // 2, width // 2)
    y = x.new_empty(n, height, width, c).permute(0, 3, 1, 2)
    pixels = height * width
    rows = min(64, triton.next_power_of_2(pixels))
    grid = (triton.cdiv(pixels, rows), triton.cdiv(c, BLOCK_C), n)
    _apply[grid](
        x, y, factor, offset, pixels, width, c,
        NORM=norm, SILU=silu, RESAMPLE=resample or "", BLOCK_S=rows, BLOCK_C=BLOCK_C,
    )  # fmt: skip
    return y


def add_residual(h: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """blocks.add_residual for channels-last h and x [N, C, H, W]."""
    h, x = (t.contiguous(memory_format=torch.channels_last) for t in (h, x))
    c = h.shape[1]
    rows = h.numel() // c
    y = torch.empty_like(h)
    _add_residual[(triton.cdiv(rows, 64), triton.cdiv(c, BLOCK_C))](h, x, bias, y, rows, c, BLOCK_S=64, BLOCK_C=BLOCK_C)
    return y
