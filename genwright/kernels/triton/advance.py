"""A step's inputs from the one before, on the device: each sequence's new token, its position and its slot."""

# mypy: disable-error-code=no-untyped-def
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
    there = b < count
    length = tl.load(lengths + b, there, 0)
    live = there & (length > 0)  # padding stays where it is
    token = tl.load(sampled + b, there, 0)
    tl.store(tokens + b, tl.maximum(token, 0), there)  # a row that is not numbers has -1
    tl.store(positions + b, length, live)
    for group in range(GROUPS):
        page = tl.load(page_tables + group * table_stride + b.to(tl.int64) * stride + length // PAGE, live, 0)
        tl.store(slots + group * slots_stride + b, page * PAGE + length % PAGE, live)
    tl.store(lengths + b, length + 1, live)


def advance(
    sampled: Tensor, tokens: Tensor, positions: Tensor, slots: Sequence[Tensor], lengths: Tensor, page_tables: Tensor
) -> None:
    """Put sampled tokens at the position `lengths`, which grow by one.

    All int64 [sequences]; `slots` are one tensor for each group of layers, at equal distances in memory, and
    `page_tables` [groups, sequences, pages].
    """
    count, groups = len(sampled), len(slots)
    distance = (slots[1].data_ptr() - slots[0].data_ptr()) // slots[0].itemsize if groups > 1 else 0
    _advance[(1,)](
        sampled, tokens, positions, slots[0], lengths, page_tables, distance, *page_tables.stride()[:2], count,
        GROUPS=groups, PAGE=PAGE, BLOCK=triton.next_power_of_2(count),
    )  # fmt: skip
