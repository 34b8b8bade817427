"""Pages over several tiers: GPU memory, CPU memory and disk. All pages of a sequence are in one tier.

The tiers' pages are numbered one after the other, so that a page number tells its tier. Each tier has a pool and a
prefix tree of its own.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from genwright.placement.host_memory import HostMemory
from genwright.placement.tiers import Tier, Tiers
from genwright.text.cache.disk_cache import DiskCache
from genwright.text.cache.layout import Cache, CacheSpec, PagedCache
from genwright.text.cache.pages import PagePool, SequencePages


def tier_pages(spec: CacheSpec, shares: Sequence[int], sequences: int, longest: int, step_tokens: int) -> list[int]:
    """Pages of each tier for its share, in percent, of the sequences, each of up to `longest` tokens.

    A tier with a share holds at least one sequence, so that no request waits forever.
    """
    each = spec.pages_of(longest, step_tokens)
    return [share and -(-sequences * share // 100) * each + spec.null_pages for share in shares]


class TieredCache:
    """A cache per tier that has a share of the sequences, the fastest tier first."""

    def __init__(
        self,
        spec: CacheSpec,
        pages: Sequence[int],  # of each tier
        shares: Sequence[int],  # of each tier, in percent
        memory: Tiers,
        sparse: bool = False,  # rows of generated tokens come from sparse attention, which a prompt's do not
    ):
        self.spec, self.memory, self.sparse = spec, memory, sparse
        self.host = HostMemory(memory.device.type == "cuda")  # pinned, whether weights are or not
        held = [(tier, count, share) for tier, count, share in zip(Tier, pages, shares, strict=True) if share]
        self.kinds = [tier for tier, _, _ in held]
        self.tiers = [self._new_cache(tier, count) for tier, count, _ in held]
        self.shares = [share for _, _, share in held]
        self.first_pages = list(accumulate((tier.pages for tier in self.tiers), initial=0))[:-1]
        self.pages = sum(tier.pages for tier in self.tiers)

    def _new_cache(self, tier: Tier, pages: int) -> PagedCache:
        spec, memory = self.spec, self.memory
        if tier is Tier.DISK:
            return DiskCache(spec, pages, memory.disk)
        memory.use.hold(tier, pages * spec.page_bytes)
        if tier is Tier.GPU:
            return Cache(spec, pages, memory.device)
        return Cache(spec, pages, torch.device("cpu"), self.host.empty)

    def tier_of(self, page: int) -> int:
        """The index of a page's tier."""
        return int(np.searchsorted(self.first_pages, page, side="right")) - 1


class TieredPages:
    """A page pool per tier, with the interface of one."""

    def __init__(self, cache: TieredCache, step_tokens: int):
        self.cache = cache
        places = zip(cache.tiers, cache.first_pages, strict=True)
        self.pools = [PagePool(tier, step_tokens, first) for tier, first in places]
        self.running = [0] * len(self.pools)  # sequences

    def start(self, tokens: Sequence[int], length: int = 0) -> SequencePages | None:
        """As `PagePool.start`, in the tier that has the longest prefix, then in the one furthest below its share."""
        total = sum(self.running) + 1

        def rank(tier: int) -> tuple[int, int]:
            return -self.pools[tier].cached_pages(tokens), 100 * self.running[tier] - self.cache.shares[tier] * total

        for tier in sorted(range(len(self.pools)), key=rank):
            sequence = self.pools[tier].start(tokens, length)
            if sequence is not None:
                self.running[tier] += 1
                return sequence
        return None

    def extend(self, sequence: SequencePages, length: int) -> bool:
        return self._pool(sequence).extend(sequence, length)

    def reserve(self, sequence: SequencePages, length: int) -> int:
        return self._pool(sequence).reserve(sequence, length)

    def share(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        self._pool(sequence).share(sequence, tokens)

    def finish(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        self._leave(sequence).finish(sequence, tokens)

    def release(self, sequence: SequencePages) -> None:
        self._leave(sequence).release(sequence)

    def discard(self, sequence: SequencePages) -> None:
        self._leave(sequence).discard(sequence)

    def _pool(self, sequence: SequencePages) -> PagePool:
        return self.pools[self.cache.tier_of(sequence.first_page)]

    def _leave(self, sequence: SequencePages) -> PagePool:
        tier = self.cache.tier_of(sequence.first_page)
        self.running[tier] -= 1
        return self.pools[tier]


Pages = PagePool | TieredPages


def new_pages(cache: PagedCache | TieredCache, step_tokens: int) -> Pages:
    return TieredPages(cache, step_tokens) if isinstance(cache, TieredCache) else PagePool(cache, step_tokens)
