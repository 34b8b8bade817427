"""A step's inputs from the one before, on the device: each sequence's new token, its position and its slot."""

# mypy: disable-error-code=no-untyped-def
import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE


@triton.jit
def _advance(
    sampled, tokens, positions, slots, lengths, page_table, stride, count, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    b = tl.arange(0, BLOCK)
    there = b < count
    length = tl.load(lengths + b, there, 0)
    live = there & (length > 0)  # padding stays where it is
    token = tl.load(sampled + b, there, 0)
    page = tl.load(page_table + b.to(tl.int64) * stride + length // PAGE, live, 0)
    tl.store(tokens + b, tl.maximum(token, 0), there)  # a row that is not numbers has -1
    tl.store(positions + b, length, live)
    tl.store(slots + b, page * PAGE + length % PAGE, live)
    tl.store(lengths + b, length + 1, live)


def advance(
    sampled: Tensor, tokens: Tensor, positions: Tensor, slots: Tensor, lengths: Tensor, page_table: Tensor
) -> None:
    """All int64 [sequences], page_table [sequences, pages]; sampled tokens come to stand at `lengths`, which grow."""
    count = len(sampled)
    block = triton.next_power_of_2(count)
    _advance[(1,)](
        sampled, tokens, positions, slots, lengths, page_table, page_table.stride(0), count, PAGE=PAGE, BLOCK=block
    )
