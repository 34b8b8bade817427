"""Prepare the next decoding step on the device: each sequence's new token, its position and its cache slot."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE


@triton.jit
def _advance(
    sampled, tokens, positions, slots, lengths, page_tables, slots_stride, table_stride, stride, count,
    GROUPS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.arange(0, BLOCK)
    valid = b < count
    length = tl.load(lengths + b, valid, 0)
    live = valid & (length > 0)  # padding rows have length 0 and keep it
    token = tl.load(sampled + b, valid, 0)
    tl.store(tokens + b, tl.maximum(token, 0), valid)  # the sampler returns -1 for a row with NaN
    tl.store(positions + b, length, live)
    for group in range(GROUPS):
        page = tl.load(page_tables + group * table_stride + b.to(tl.int64) * stride + length // PAGE, live, 0)
        tl.store(slots + group * slots_stride + b, page * PAGE + length % PAGE, live)
    tl.store(lengths + b, length + 1, live)


def advance(
    sampled: Tensor, tokens: Tensor, positions: Tensor, slots: Sequence[Tensor], lengths: Tensor, page_tables: Tensor
) -> None:
    """Append each sequence's sampled token at position `lengths`, and add one to `lengths`.

    All tensors are int64 [sequences], except `page_tables` [groups, sequences, pages]. `slots` has one tensor for each
    group of layers; the tensors are equally spaced in memory.
    """
    count, groups = len(sampled), len(slots)
    slots_stride = (slots[1].data_ptr() - slots[0].data_ptr()) // slots[0].itemsize if groups > 1 else 0
    _advance[(1,)](
        sampled, tokens, positions, slots[0], lengths, page_tables, slots_stride, *page_tables.stride()[:2], count,
        GROUPS=groups, PAGE=PAGE, BLOCK=triton.next_power_of_2(count),
    )  # fmt: skip
