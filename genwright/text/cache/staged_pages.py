"""Which pages a micro-batch has in other tiers, and their numbers while they are staged on the compute device.

They are numbered anew from 1 on, the same in every layer of a group; page 0 stays zero and stands for every null page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from genwright.kernels import PAGE
from genwright.text.cache.tiered import TieredCache

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Consecutive pages: `count` of them from `staged` on are those of the tier from `page` on."""

    tier: int
    page: int
    staged: int
    count: int


@dataclass(frozen=True)
class Rows:
    """Tokens `first` to `stop` of a page, which a step computes."""

    tier: int
    page: int
    staged: int
    first: int
    stop: int


@dataclass
class StagedPages:
    """The pages of a micro-batch's sequences that are staged; each list has an element for each group of layers."""

    pages: list[int]  # including page 0
    fetched: list[list[Run]]  # pages with rows that queries read
    fresh: list[list[Run]]  # pages without rows yet
    written: list[list[Rows]]
    tables: list[Int64s]  # of each sequence: its page tables with staged numbers

    def follows(self, other: "StagedPages") -> bool:
        """Whether it reads rows that the other micro-batch writes: both have parts of one long prompt."""
        changed = {(rows.tier, rows.page) for group in other.written for rows in group}
        runs = (run for group in self.fetched for run in group)
        return any((run.tier, run.page + i) in changed for run in runs for i in range(run.count))


def stage_pages(cache: TieredCache, sequences: Sequence[tuple[Int64s, int, int]]) -> StagedPages:
    """Number the pages of sequences anew: of each its page tables, and where its new tokens begin and end."""
    spec = cache.spec
    found = StagedPages([], [], [], [], [np.zeros_like(table) for table, _, _ in sequences])
    nulls = [first for first in cache.first_pages if spec.null_pages]
    for group in range(len(spec.groups)):
        used = [-(-end // PAGE) for _, _, end in sequences]
        tables = [table[group, :count] for (table, _, _), count in zip(sequences, used, strict=True)]
        pages, staged = np.unique(np.concatenate(tables), return_inverse=True)
        null = np.isin(pages, nulls)
        numbers = np.where(null, 0, np.cumsum(~null))
        places = np.split(numbers[staged], np.cumsum(used)[:-1])
        has_rows = np.zeros(len(pages) + 1, bool)  # by staged number
        written: list[Rows] = []
        for (_, start, end), table, place, whole in zip(sequences, tables, places, found.tables, strict=True):
            whole[group, : len(place)] = place
            has_rows[place[: -(-start // PAGE)]] = True
            for index in range(start // PAGE, len(place)):
                first, stop = max(start - index * PAGE, 0), min(end - index * PAGE, PAGE)
                written.append(Rows(*_locate(cache, int(table[index])), int(place[index]), first, stop))
        pages, numbers = pages[~null], numbers[~null]
        kept = has_rows[numbers]
        found.pages.append(len(pages) + 1)
        found.fetched.append(list(_runs(cache, pages[kept], numbers[kept])))
        found.fresh.append(list(_runs(cache, pages[~kept], numbers[~kept])))
        found.written.append(written)
    return found


def _locate(cache: TieredCache, page: int) -> tuple[int, int]:
    tier = cache.tier_of(page)
    return tier, page - cache.first_pages[tier]


def _runs(cache: TieredCache, pages: Int64s, numbers: Int64s) -> Iterator[Run]:
    """Pages in ascending order, as runs that are consecutive in one tier and when staged."""
    if not len(pages):
        return
    tiers = np.searchsorted(cache.first_pages, pages, side="right")
    breaks = (np.diff(pages) != 1) | (np.diff(numbers) != 1) | (np.diff(tiers) != 0)
    for first, stop in pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(pages)]):
        yield Run(*_locate(cache, int(pages[first])), int(numbers[first]), stop - first)
