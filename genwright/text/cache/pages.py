"""Pages and the prefix tree: which pages a sequence has, and which of them it shares with others.

A sequence's tokens 0 to PAGE - 1 are in its first pages, one page for each group of layers, and so on. Full pages move
into a tree keyed by their tokens, where later sequences with the same prefix find them. A page of a group with a window
may be evicted once no running query can see it. The node stays in the tree, and a new sequence can start after it if
all pages that its own windows can see are still there.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import le

import numpy as np
from numpy.typing import NDArray

from genwright.kernels import PAGE
from genwright.text.cache.layout import NULL_PAGE, PagedCache

NO_PAGE = -1  # a group with a window has no page here: not allocated yet, or evicted
LEAF = -1  # in `evictable` instead of a group: all pages of a leaf


@dataclass(eq=False)
class Prefix:
    """A node of the tree: the tokens of one page after its parent's. A sequence's last page may be partly filled."""

    parent: "Prefix | None"
    tokens: tuple[int, ...]
    pages: list[int]  # of each group
    readers: list[int]  # of each group: running sequences whose queries may still see the page
    users: int = 0  # running sequences that begin with this prefix
    children: dict[tuple[int, ...], "Prefix"] = field(default_factory=dict)


@dataclass(eq=False)
class SequencePages:
    """The pages of one sequence: first those shared through the tree, then its own."""

    passed: list[int]  # of each group: leading pages that the window has passed
    shared: list[Prefix] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)  # of each group
    length: int = 0  # tokens whose rows are in the cache
    first_page: int = 0  # number of the pool's page 0 where several pools share one numbering
    _tables: NDArray[np.int64] | None = None  # of `tables`; None after a change

    def __len__(self) -> int:
        return len(self.shared) + len(self.own)

    def tables(self) -> NDArray[np.int64]:
        """Page numbers in the order of tokens, one row for each group; rebuilt only after `changed`."""
        if self._tables is None:
            pages = [node.pages for node in self.shared] + self.own
            tables = np.array(pages, dtype=np.int64).reshape(len(self), len(self.passed)).T
            for table, passed in zip(tables, self.passed, strict=True):
                table[:passed] = NULL_PAGE
            self._tables = np.maximum(tables, NULL_PAGE) + self.first_page
        return self._tables

    def changed(self) -> None:
        self._tables = None

    def capacity(self) -> int:
        """Tokens that the pages can hold; groups with a window get theirs step by step."""
        missing = (index for index, pages in enumerate(self.own, len(self.shared)) if NO_PAGE in pages)
        return next(missing, len(self)) * PAGE


class PagePool:
    """Allocates and frees pages, and keeps finished prefixes until their pages are needed."""

    def __init__(self, cache: PagedCache, step_tokens: int, first_page: int = 0):
        self.cache, self.first_page = cache, first_page
        self.windows = cache.spec.windows
        # The most tokens of the steps in flight and of the next one; groups with a window get pages for these.
        self.step_tokens = step_tokens
        self._groups = range(len(self.windows))
        self._windowed = [group for group in self._groups if self.windows[group]]
        self._unbounded = [group for group in self._groups if not self.windows[group]]
        self.free = list(range(cache.spec.null_pages, cache.pages))
        self.root = Prefix(None, (), [], [])
        # Least recently used first: pages of groups with a window that no running query can see, and all pages of
        # leaves (LEAF) without users.
        self.evictable: OrderedDict[tuple[Prefix, int], None] = OrderedDict()

    def start(self, tokens: Sequence[int], length: int = 0) -> SequencePages | None:
        """A sequence that starts with the cached prefix of all `tokens` but the last.

        It has pages for `length` tokens and for the token after the prefix; None if there are not so many.
        """
        path = self._match_prefix(tokens)
        starts = self._window_starts(len(path) * PAGE)
        sequence = SequencePages(starts, path, [], len(path) * PAGE, self.first_page)
        for index, node in enumerate(path):
            self._acquire(node, [group for group in self._groups if index >= sequence.passed[group]])
        source, common = self._partial_match(path[-1] if path else self.root, tokens[sequence.length : -1])
        if source is not None:
            self._acquire(source, self._groups)  # so that `extend` does not evict what is about to be copied
            if self.extend(sequence, sequence.length + 1):
                for page, copied in zip(sequence.own[0], source.pages, strict=True):
                    self.cache.copy(copied, page, common)
                sequence.length += common
            self._release_node(source, self._groups)
        if self.extend(sequence, max(sequence.length + 1, length)):  # the source's pages may be the only ones left
            return sequence
        self.release(sequence)
        return None

    def cached_pages(self, tokens: Sequence[int]) -> int:
        """How many full pages `start` would find in the tree."""
        return len(self._match_prefix(tokens))

    def extend(self, sequence: SequencePages, length: int) -> bool:
        """Allocate pages for `length` tokens. When pages run out, keep those allocated so far and return False.

        Groups with a window get pages for the next step only, because earlier pages are freed by then.
        """
        while len(sequence) * PAGE < length:
            pages = [NO_PAGE] * len(self.windows)
            if not self._allocate_missing(pages, self._unbounded):
                self.free += _allocated(pages)
                return False
            sequence.own.append(pages)
            sequence.changed()
        if not self._windowed:
            return True
        soon = -(-min(length, sequence.length + self.step_tokens) // PAGE)
        for pages in sequence.own[: max(0, soon - len(sequence.shared))]:
            if NO_PAGE in pages:
                sequence.changed()
                if not self._allocate_missing(pages, self._windowed):
                    return False
        return True

    def reserve(self, sequence: SequencePages, length: int) -> int:
        """Allocate pages for up to `length` tokens; returns how many tokens fit."""
        self.extend(sequence, length)
        return min(length, sequence.capacity())

    def share(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Move the sequence's full pages to the tree, and release pages that its windows have passed."""
        while (len(sequence.shared) + 1) * PAGE <= sequence.length:
            first = len(sequence.shared) * PAGE
            self._insert(sequence, tuple(tokens[first : first + PAGE]))
        if not self._windowed:
            return
        starts = self._window_starts(sequence.length)
        if starts == sequence.passed:
            return
        for group in self._windowed:
            for node in sequence.shared[sequence.passed[group] : starts[group]]:
                self._release_page(node, group)
        sequence.passed = starts
        sequence.changed()

    def finish(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Release a sequence, and keep all its tokens in the tree."""
        self.share(sequence, tokens)
        rest = tuple(tokens[len(sequence.shared) * PAGE : sequence.length])
        if rest and self._partial_match(sequence.shared[-1] if sequence.shared else self.root, rest)[1] < len(rest):
            self._insert(sequence, rest)
        self.release(sequence)

    def release(self, sequence: SequencePages) -> None:
        """Free the sequence's own pages; those in the tree stay there until they are evicted."""
        for index in reversed(range(len(sequence.shared))):
            groups = [group for group in self._groups if index >= sequence.passed[group]]
            self._release_node(sequence.shared[index], groups)
        self.free += [page for pages in sequence.own for page in _allocated(pages)]
        sequence.shared, sequence.own, sequence.length = [], [], 0
        sequence.passed = [0] * len(self.windows)
        sequence.changed()

    def discard(self, sequence: SequencePages) -> None:
        """Release a sequence that may hold NaN, and zero every page that no other sequence uses."""
        pages, nodes = [page for each in sequence.own for page in _allocated(each)], list(sequence.shared)
        self.release(sequence)
        for node in reversed(nodes):
            if (node, LEAF) in self.evictable:
                pages += self._evict_leaf(node)
        self.cache.clear(pages)

    def _match_prefix(self, tokens: Sequence[int]) -> list[Prefix]:
        """The longest cached prefix of all tokens but the last that has every page its windows can see."""
        path, node, whole = list[Prefix](), self.root, 0
        missing = [0] * len(self.windows)  # of each group: pages up to the last evicted one
        for end in range(PAGE, len(tokens), PAGE):
            child = node.children.get(tuple(tokens[end - PAGE : end]))
            if child is None:
                break
            path.append(node := child)
            missing = [
                len(path) if page == NO_PAGE else before for page, before in zip(node.pages, missing, strict=True)
            ]
            if all(map(le, missing, self._window_starts(end))):
                whole = len(path)
        return path[:whole]

    def _window_starts(self, length: int) -> list[int]:
        """For each group, the first page that a query after `length` tokens can see."""
        return [0 if window is None else max(0, length - window + 1) // PAGE for window in self.windows]

    def _insert(self, sequence: SequencePages, tokens: tuple[int, ...]) -> None:
        """Move the sequence's first own page, which holds these tokens, to the tree."""
        parent, pages = sequence.shared[-1] if sequence.shared else self.root, sequence.own.pop(0)
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = Prefix(parent, tokens, pages, [0] * len(pages))
        else:  # another sequence computed the same tokens; its pages with a window may have been evicted
            for group, page in enumerate(pages):
                if node.pages[group] == NO_PAGE:
                    node.pages[group] = page
                else:
                    self.free.append(page)
        self._acquire(node, self._groups)
        sequence.shared.append(node)
        sequence.changed()

    def _acquire(self, node: Prefix, groups: Sequence[int]) -> None:
        node.users += 1
        self.evictable.pop((node, LEAF), None)
        for group in groups:
            node.readers[group] += 1
            self.evictable.pop((node, group), None)

    def _release_page(self, node: Prefix, group: int) -> None:
        """One reader less; a page of a group with a window is evictable without readers."""
        node.readers[group] -= 1
        if not node.readers[group] and self.windows[group]:
            self.evictable[node, group] = None

    def _release_node(self, node: Prefix, groups: Sequence[int]) -> None:
        for group in groups:
            self._release_page(node, group)
        node.users -= 1
        if not node.users and not node.children:
            self.evictable[node, LEAF] = None

    def _allocate_missing(self, pages: list[int], groups: Sequence[int]) -> bool:
        """Allocate a page for each of these groups that has none; False when pages run out."""
        for group in groups:
            if pages[group] == NO_PAGE:
                page = self._allocate()
                if page is None:
                    return False
                pages[group] = page
        return True

    def _allocate(self) -> int | None:
        """A free page; evicts the least recently used one if there is none."""
        while not self.free:
            if not self.evictable:
                return None
            node, group = next(iter(self.evictable))
            if group == LEAF:
                self._evict_leaf(node)
            else:
                del self.evictable[node, group]
                self.free.append(node.pages[group])
                node.pages[group] = NO_PAGE
        return self.free.pop()

    def _evict_leaf(self, node: Prefix) -> list[int]:
        """Remove an unused leaf from the tree, and free and return its pages; its parent may become evictable."""
        for group in (LEAF, *self._windowed):
            self.evictable.pop((node, group), None)
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent is not self.root and not parent.users and not parent.children:
            self.evictable[parent, LEAF] = None
            self.evictable.move_to_end((parent, LEAF), last=False)
        pages = _allocated(node.pages)
        self.free += pages
        return pages

    @staticmethod
    def _partial_match(node: Prefix, tokens: Sequence[int]) -> tuple[Prefix | None, int]:
        """The child with all its pages that shares the most leading tokens, and the number of those tokens."""
        best, longest = None, 0
        for child in node.children.values():
            if not tokens or child.tokens[0] != tokens[0]:  # most of them, where many prompts are cached
                continue
            pairs = enumerate(zip(child.tokens, tokens, strict=False))
            common = next((i for i, (a, b) in pairs if a != b), min(len(child.tokens), len(tokens)))
            if common > longest and NO_PAGE not in child.pages:
                best, longest = child, common
        return best, longest


def _allocated(pages: list[int]) -> list[int]:
    return [page for page in pages if page != NO_PAGE]
