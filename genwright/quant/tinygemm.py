"""The layout of torch's int4 GPU kernel (`_convert_weight_to_int4pack`), in which gpt-fast saves weights.

Words int32 [n / 8, k / (16 t), 32, t / 2] for t inner tiles. Lane l of 32 holds row l / 4. A word covers two tiles of
16 columns; in each, the lane holds columns 2 (l % 4) and 2 (l % 4) + 1, and the two that are 8 further. The order of
the eight weights in a word is the same as in int4.py. A weight is (q - 8) s + z; s and z are bfloat16 [groups, n, 2].
"""

import torch
from torch import Tensor

from genwright.quant.int4 import ZERO, Int4, pack, unpack


def columns(words: Tensor) -> int:
    """The number of columns of the matrix, including padding."""
    return words.shape[1] * words.shape[3] * 32


def repack(words: Tensor, scales_and_zeros: Tensor, inputs: int, group: int) -> Int4:
    """Convert the first `inputs` columns to Int4; the minimum z - 8 s is rounded to float16."""
    q = untile(words)[:, :inputs]
    used = scales_and_zeros[: -(-inputs // group)].float().transpose(0, 1)  # [n, groups, 2]
    scales, zeros = used.unbind(-1)
    minimums = (zeros - ZERO * scales).to(torch.float16)
    return Int4(pack(q), scales.to(torch.float16), minimums, inputs, group)


def untile(words: Tensor) -> Tensor:
    """q [n, k] of tiles."""
    rows, outer, _, inner = words.shape
    q = unpack(words).view(rows, outer, 8, 4, inner, 2, 2, 2)  # row, pair of columns, word, tile, half, one of the pair
    return q.permute(0, 2, 1, 4, 5, 6, 3, 7).reshape(rows * 8, -1)


def tile(q: Tensor, inner: int) -> Tensor:
    """The words of q [n, k], 0 <= q <= 15, for `inner` inner tiles: the inverse of `untile`."""
    q = q.view(q.shape[0] // 8, 8, q.shape[1] // (16 * inner), inner // 2, 2, 2, 4, 2)
    return pack(q.permute(0, 2, 1, 6, 3, 4, 5, 7).reshape(q.shape[0], q.shape[2], 32, inner // 2, 8)).squeeze(-1)
