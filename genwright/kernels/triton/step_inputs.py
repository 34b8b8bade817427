"""Write a step's inputs to their fixed places, with the token ids that only the device knows, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit

BLOCK = 1024


# One binary for every step, so that no stream waits for a compiler.
@jit(do_not_specialize=["count", "tokens"], do_not_specialize_on_alignment=["staged", "known"])
def _write_inputs(inputs, staged, known, count, tokens, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(staged + i, i < count, 0)
    unread = (i < tokens) & (value < 0)
    taken = tl.load(known + tl.where(unread, -1 - value, 0), unread, 0)
    tl.store(inputs + i, tl.where(unread, tl.maximum(taken, 0), value), i < count)


def write_inputs(inputs: Tensor, staged: Tensor, known: Tensor | None, tokens: int) -> None:
    """Copy `staged` to `inputs`; of the first `tokens` ids, each negative -1 - i becomes known[i], or 0 if that is < 0.

    All are int64 and contiguous. Without `known` all values are copied as they are.
    """
    count = len(staged)
    ids = 0 if known is None else tokens
    _write_inputs[(triton.cdiv(count, BLOCK),)](
        inputs, staged, staged if known is None else known, count, ids, BLOCK=BLOCK
    )
