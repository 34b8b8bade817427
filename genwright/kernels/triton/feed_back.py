"""Make drawn tokens the next step's inputs, in one launch, so that a CUDA graph can decode without the host."""

import triton
import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE
from genwright.kernels.sampling import POSITION

_POSITION = tl.constexpr(POSITION)
_PAGE = tl.constexpr(PAGE)


def feed_back(
    drawn: Tensor,  # [n], the tokens after those at `positions`
    bounds: Tensor,  # [n, 2]: the position of the first token to draw, and the first position that is not fed
    settings: Tensor,  # int32 [n, words], of `sampling`
    tokens: Tensor,  # [n, most], all drawn tokens of each sequence
    ids: Tensor,  # [n], the step's
    positions: Tensor,
    lengths: Tensor,
    slots: Tensor,  # [groups, n]
    page_tables: Tensor,  # [groups, n, pages]
) -> None:
    """Keep the drawn tokens, and advance the step of one token per sequence by one; all int64 but `settings`.

    A sequence whose slot is -1 draws no more; it keeps its inputs, and nothing of it is written.
    """
    groups, count = len(page_tables), len(drawn)
    _feed_back[(count,)](
        drawn, bounds, bounds.stride(0), settings, settings.stride(0), tokens, tokens.stride(0), ids, positions,
        lengths, slots, slots.stride(0), page_tables, page_tables.stride(0), page_tables.stride(1),
        GROUPS=groups, num_warps=1,
    )  # fmt: skip


@triton.jit
def _feed_back(
    drawn, bounds, bounds_stride, settings, settings_stride, tokens, tokens_stride, ids, positions,
    lengths, slots, slots_stride, tables, group_stride, table_stride,
    GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(slots + row) >= 0:
        token = tl.load(drawn + row)
        position = tl.load(positions + row) + 1
        tl.store(tokens + row * tokens_stride + position - tl.load(bounds + row * bounds_stride), token)
        is_fed = position < tl.load(bounds + row * bounds_stride + 1)
        for group in tl.static_range(GROUPS):
            page = tl.load(tables + group * group_stride + row * table_stride + position // _PAGE, is_fed, 0)
            slot = tl.where(is_fed, page * _PAGE + position % _PAGE, -1)
            tl.store(slots + group * slots_stride + row, slot)
        if is_fed:
            tl.store(ids + row, tl.maximum(token, 0))  # -1 after a NaN
            tl.store(positions + row, position)
            tl.store(lengths + row, position + 1)
            tl.store(settings + row * settings_stride + _POSITION, (position + 1).to(tl.int32))
