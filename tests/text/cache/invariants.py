"""Invariants of a page pool."""

from collections.abc import Iterator, Sequence

from genwright.text.cache.pages import LEAF, NO_PAGE, PagePool, Prefix, SequencePages
from genwright.text.cache.tiered import Pages, TieredPages


def prefixes(pool: PagePool) -> Iterator[Prefix]:
    """Every node of the tree."""
    stack = list(pool.root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def available(pool: Pages) -> int:
    """Pages that no running sequence holds."""
    if isinstance(pool, TieredPages):
        return sum(map(available, pool.pools))
    taken = {page for node in prefixes(pool) if node.users for page in node.pages}
    return len(pool.free) + sum(page != NO_PAGE and page not in taken for node in prefixes(pool) for page in node.pages)


def check_pool(pool: Pages, sequences: Sequence[SequencePages]) -> None:
    """Every page is free, in the tree, or one sequence's own, and exactly one of these; all counts are right."""
    if isinstance(pool, TieredPages):
        parts = [[each for each in sequences if each.first_page == tier.first_page] for tier in pool.pools]
        assert pool.running == list(map(len, parts)) and sum(pool.running) == len(sequences)
        for tier, part in zip(pool.pools, parts, strict=True):
            check_pool(tier, part)
        return
    nodes, groups = list(prefixes(pool)), range(len(pool.windows))
    held = [*(node.pages for node in nodes), *(pages for sequence in sequences for pages in sequence.own)]
    everything = [*pool.free, *(page for pages in held for page in pages if page != NO_PAGE)]
    assert sorted(everything) == list(range(pool.cache.spec.null_pages, pool.cache.pages))
    evictable = set()
    for node in nodes:
        holders = [sequence for sequence in sequences if node in sequence.shared]
        assert node.users == len(holders)
        assert node.parent is pool.root or node.parent.users >= node.users
        assert node.parent.children[node.tokens] is node
        for group in groups:
            readers = sum(sequence.shared.index(node) >= sequence.passed[group] for sequence in holders)
            assert node.readers[group] == readers
            assert node.pages[group] != NO_PAGE or (pool.windows[group] and not readers)
            if pool.windows[group] and not readers and node.pages[group] != NO_PAGE:
                evictable.add((node, group))
        if not node.users and not node.children:
            evictable.add((node, LEAF))
    assert set(pool.evictable) == evictable
    for sequence in sequences:
        assert sequence.capacity() >= sequence.length
