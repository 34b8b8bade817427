"""Which pages a micro-batch has in other tiers, and their numbers while they are staged on the compute device.

Staged pages are numbered from 1 on, equally in every layer of a group. Page 0 stays zero and replaces every null page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    keys_only: bool = False  # values stay in their tier


@dataclass(frozen=True)
class Rows:
    """Tokens `first` to `stop` of a page, which a step computes, or all tokens of `count` consecutive pages."""

    tier: int
    page: int
    staged: int
    first: int
    stop: int
    keys_only: bool = False
    count: int = 1

    def joins(self, other: "Rows") -> bool:
        """Whether the other rows, all of a page, continue these, all of one page or of several."""
        whole = (self.first, self.stop) == (other.first, other.stop) == (0, PAGE)
        next_page = self.tier, self.page + self.count, self.staged + self.count, self.keys_only
        return whole and next_page == (other.tier, other.page, other.staged, other.keys_only)


@dataclass(frozen=True)
class Span:
    """What a step computes of a sequence: its tokens from `start` to `end`."""

    tables: Int64s  # of each group of layers: the sequence's pages
    start: int
    end: int
    keys_only: bool = False  # sparse attention, which reads few of the values


@dataclass
class StagedPages:
    """The pages of a micro-batch's sequences that are staged; each list has an element for each group of layers."""

    pages: list[int]  # including page 0
    fetched: list[list[Run]]  # pages with rows that queries read
    fresh: list[list[Run]]  # pages without rows yet
    written: list[list[Rows]]
    tables: list[Int64s]  # of each sequence: its page tables with staged numbers

    read: Int64s  # the pages of `fetched` and of `written`, with their own numbers
    changed: Int64s

    def follows(self, other: "StagedPages") -> bool:
        """Whether it reads rows that the other micro-batch writes, because both have parts of one long prompt."""
        return bool(np.isin(other.changed, self.read).any())


def stage_pages(cache: TieredCache, spans: Sequence[Span]) -> StagedPages:
    """Give the pages of these sequences their staged numbers."""
    empty = np.zeros(0, np.int64)
    found = StagedPages([], [], [], [], [np.zeros_like(span.tables) for span in spans], empty, empty)
    nulls = [first for first in cache.first_pages if cache.spec.null_pages]
    used = [-(-span.end // PAGE) for span in spans]
    for group in range(len(cache.spec.groups)):
        tables = [span.tables[group, :count] for span, count in zip(spans, used, strict=True)]
        pages, staged = np.unique(np.concatenate(tables), return_inverse=True)
        null = np.isin(pages, nulls)
        numbers = np.where(null, 0, np.cumsum(~null))
        places = np.split(numbers[staged], np.cumsum(used)[:-1])
        has_rows, has_values = np.zeros((2, len(pages) + 1), bool)  # by staged number
        written: list[Rows] = []
        for span, table, place, whole in zip(spans, tables, places, found.tables, strict=True):
            whole[group, : len(place)] = place
            has_rows[place[: -(-span.start // PAGE)]] = True
            has_values[place] |= not span.keys_only
            for index in range(span.start // PAGE, len(place)):
                first, stop = max(span.start - index * PAGE, 0), min(span.end - index * PAGE, PAGE)
                page = _locate(cache, int(table[index]))
                written.append(Rows(*page, int(place[index]), first, stop, span.keys_only))
            found.changed = np.union1d(found.changed, table[span.start // PAGE :])
        pages, numbers = pages[~null], numbers[~null]
        kept, keys_only = has_rows[numbers], ~has_values[numbers]
        found.pages.append(len(pages) + 1)
        found.fetched.append(list(_runs(cache, pages[kept], numbers[kept], keys_only[kept])))
        found.fresh.append(list(_runs(cache, pages[~kept], numbers[~kept], keys_only[~kept])))
        found.written.append(_joined(written))
        found.read = np.union1d(found.read, pages[kept])
    return found


def _joined(written: list[Rows]) -> list[Rows]:
    """The same rows in fewer pieces, each of which is one copy."""
    found: list[Rows] = []
    for rows in sorted(written, key=lambda rows: rows.staged):
        if found and found[-1].joins(rows):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(rows)
    return found


def _locate(cache: TieredCache, page: int) -> tuple[int, int]:
    tier = cache.tier_of(page)
    return tier, page - cache.first_pages[tier]


def _runs(cache: TieredCache, pages: Int64s, numbers: Int64s, keys_only: NDArray[np.bool_]) -> Iterator[Run]:
    """Pages in ascending order, as runs that are consecutive in one tier and when staged."""
    if not len(pages):
        return
    tiers = np.searchsorted(cache.first_pages, pages, side="right")
    breaks = (np.diff(pages) != 1) | (np.diff(numbers) != 1) | np.diff(tiers).astype(bool) | np.diff(keys_only)
    for first, stop in pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(pages)]):
        yield Run(*_locate(cache, int(pages[first])), int(numbers[first]), stop - first, bool(keys_only[first]))
