"""Make drawn tokens the next step's inputs, in one launch each, so that a GPU can decode without the host."""

import triton.language as tl
from torch import Tensor

from genwright.kernels import PAGE
from genwright.kernels.sampling import POSITION
from genwright.kernels.triton.jit import jit

_POSITION = tl.constexpr(POSITION)
_PAGE = tl.constexpr(PAGE)


def feed_back(
    drawn: Tensor,  # [n], one token of each sequence, at the positions in `settings`
    bounds: Tensor,  # [n, 2]: the positions of the first token and of the last, which is not fed
    settings: Tensor,  # int32 [n, words], of `sampling`
    tokens: Tensor,  # [n, most], all drawn tokens of each sequence
    step: tuple[Tensor, Tensor, Tensor, Tensor],  # ids, positions, lengths and offsets
    slots: Tensor,  # [groups, >= n]
    page_tables: Tensor,  # [groups, >= n, pages]
) -> None:
    """Keep the drawn tokens, and write the step that computes them, one of each sequence; all int64 but `settings`.

    A sequence whose last token is drawn gets the slot -1, so that nothing of it is written any more.
    """
    _feed_back[(len(drawn),)](
        drawn, bounds, bounds.stride(0), settings, settings.stride(0), tokens, tokens.stride(0), *step,
        slots, slots.stride(0), page_tables, page_tables.stride(0), page_tables.stride(1),
        GROUPS=len(page_tables), num_warps=1,
    )  # fmt: skip


@jit
def _feed_back(
    drawn, bounds, bounds_stride, settings, settings_stride, tokens, tokens_stride,
    ids, positions, lengths, offsets,
    slots, slots_stride, tables, group_stride, table_stride,
    GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token = tl.load(drawn + row)
    settings += row * settings_stride
    position = tl.load(settings + _POSITION)
    first = tl.load(bounds + row * bounds_stride)
    last = tl.load(bounds + row * bounds_stride + 1)
    tl.store(tokens + row * tokens_stride + position - first, token, position <= last)
    is_fed = position < last
    for group in tl.static_range(GROUPS):
        page = tl.load(tables + group * group_stride + row * table_stride + position // _PAGE, is_fed, 0)
        tl.store(slots + group * slots_stride + row, tl.where(is_fed, page * _PAGE + position % _PAGE, -1))
    tl.store(ids + row, tl.maximum(token, 0))  # -1 after a NaN
    tl.store(positions + row, tl.minimum(position, last))
    tl.store(lengths + row, tl.where(is_fed, position + 1, 0))
    tl.store(offsets + row + 1, row + 1)
    tl.store(settings + _POSITION, position + 1)


def accept(
    verified: Tensor,  # [n, 3]: of each sequence, the row of its first drawn token, the place of its first proposal,
    drawn: Tensor,  # and the number of these; drawn [rows] has one token more
    proposed: Tensor,  # [places]
    bounds: Tensor,  # [sequences, 2], as in `feed_back`
    settings: Tensor,  # int32 [sequences, words]
    step: tuple[Tensor, Tensor, Tensor],  # ids, positions and lengths, of two tokens per sequence
    slots: Tensor,  # [groups, >= 2 n]
    page_tables: Tensor,  # [groups, >= n, pages]
) -> None:
    """Move a step of two tokens per sequence on by the number of proposals that are equal to the drawn tokens.

    It has been written as if none were: its tokens are the last one before the proposals and the first drawn one.
    """
    _accept[(len(verified),)](
        verified, drawn, proposed, bounds, bounds.stride(0), settings, settings.stride(0), *step,
        slots, slots.stride(0), page_tables, page_tables.stride(0), page_tables.stride(1),
        GROUPS=len(page_tables), num_warps=1,
    )  # fmt: skip


@jit
def _accept(
    verified, drawn, proposed, bounds, bounds_stride, settings, settings_stride, ids, positions, lengths,
    slots, slots_stride, tables, group_stride, table_stride,
    GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    drawn += tl.load(verified + 3 * row)
    proposed += tl.load(verified + 3 * row + 1)
    count = tl.load(verified + 3 * row + 2)
    accepted = tl.full([], 0, tl.int64)
    going = count > 0
    while going:
        going = tl.load(drawn + accepted) == tl.load(proposed + accepted)
        accepted += going.to(tl.int64)
        going &= accepted < count
    last = tl.load(drawn + accepted)
    before = tl.load(drawn + accepted - 1, accepted > 0, 0)
    tl.store(ids + 2 * row, before, accepted > 0)
    tl.store(ids + 2 * row + 1, tl.maximum(last, 0))  # -1 after a NaN
    for i in tl.static_range(2):
        position = tl.load(positions + 2 * row + i) + accepted
        tl.store(positions + 2 * row + i, position)
        for group in tl.static_range(GROUPS):
            page = tl.load(tables + group * group_stride + row * table_stride + position // _PAGE)
            tl.store(slots + group * slots_stride + 2 * row + i, page * _PAGE + position % _PAGE)
        bound = bounds + row * bounds_stride + i
        tl.store(bound, tl.load(bound) + accepted)
    tl.store(lengths + row, tl.load(lengths + row) + accepted)
    word = settings + row * settings_stride + _POSITION
    tl.store(word, tl.load(word) + accepted.to(tl.int32))
