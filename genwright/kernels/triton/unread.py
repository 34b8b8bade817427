"""Fill in the token ids of a step that only the device knows, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels.triton.jit import jit

BLOCK = 1024


# One binary for every step, so that no stream waits for a compiler.
@jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["known"])
def _take_unread(ids, known, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + i, i < count, 0)
    unread = token < 0
    taken = tl.load(known + tl.where(unread, -1 - token, 0), unread, 0)
    tl.store(ids + i, tl.maximum(taken, 0), unread)


def take_unread(ids: Tensor, known: Tensor) -> None:
    """Replace each negative id -1 - i by known[i], or by 0 where that is negative; both int64."""
    _take_unread[(triton.cdiv(len(ids), BLOCK),)](ids, known, len(ids), BLOCK=BLOCK)
