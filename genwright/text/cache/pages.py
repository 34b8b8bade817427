"""Pages and the prefix tree: which pages a sequence has, and which of them it shares with others.

A sequence's tokens 0 to 63 lie in its first pages, one page for each group of layers, and so on. Full pages move into
a tree keyed by their tokens, where later sequences with the same prefix find them. A page of a group with a window may
be taken away once no running query can see it; the tree then still knows the prefix, and a new sequence can start
behind it only where its own windows are whole.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import le

from genwright.kernels import PAGE
from genwright.text.cache.layout import NULL_PAGE, Cache

NO_PAGE = -1  # a group with a window has no page here, yet or any more
LEAF = -1  # in the place of a group: all pages of a leaf


@dataclass(eq=False)
class Prefix:
    """A node of the tree: the tokens of one page after its parent's, full but for the last of a sequence."""

    parent: "Prefix | None"
    tokens: tuple[int, ...]
    pages: list[int]  # of each group
    readers: list[int]  # of each group: sequences whose queries may still see the page
    users: int = 0  # sequences that begin with this prefix
    children: dict[tuple[int, ...], "Prefix"] = field(default_factory=dict)


@dataclass(eq=False)
class SequencePages:
    """Where one sequence's tokens lie: pages shared through the tree first, then pages of its own."""

    passed: list[int]  # of each group: leading pages that its window has passed
    shared: list[Prefix] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)  # of each group
    length: int = 0  # tokens whose rows are in the cache

    def __len__(self) -> int:
        return len(self.shared) + len(self.own)

    def tables(self) -> list[list[int]]:
        """Page numbers in the order of tokens, one list for each group."""
        tables = []
        for group, passed in enumerate(self.passed):
            table = [node.pages[group] for node in self.shared] + [pages[group] for pages in self.own]
            table[:passed] = [NULL_PAGE] * passed
            tables.append([max(page, NULL_PAGE) for page in table] if passed or NO_PAGE in table else table)
        return tables

    def capacity(self) -> int:
        """Tokens that the pages hold: those of groups with a window are taken as they are needed."""
        missing = (place for place, pages in enumerate(self.own, len(self.shared)) if NO_PAGE in pages)
        return next(missing, len(self)) * PAGE


class PagePool:
    """Hands out pages, takes them back, and keeps finished prefixes until their pages are needed."""

    def __init__(self, cache: Cache, step_tokens: int):
        self.cache = cache
        self.windows = cache.spec.windows
        self.step_tokens = step_tokens  # that a step computes at the most: so far ahead groups with windows get pages
        self._groups = range(len(self.windows))
        self._windowed = [group for group in self._groups if self.windows[group]]
        self._unbounded = [group for group in self._groups if not self.windows[group]]
        self.free = list(range(cache.spec.null_pages, cache.pages))
        self.root = Prefix(None, (), [], [])
        # What may be taken, longest unused first: pages of groups with a window that no running query can see, and
        # whole leaves (LEAF) without users.
        self.unused: OrderedDict[tuple[Prefix, int], None] = OrderedDict()

    def start(self, tokens: Sequence[int]) -> SequencePages | None:
        """A sequence that begins with what the tree holds of `tokens` but the last; None without a page for it."""
        path = self._find(tokens)
        sequence = SequencePages(self._windows_start(len(path) * PAGE), path, [], len(path) * PAGE)
        for place, node in enumerate(path):
            self._hold(node, [group for group in self._groups if place >= sequence.passed[group]])
        source, common = self._closest(path[-1] if path else self.root, tokens[sequence.length : -1])
        if source is not None:
            self._hold(source, self._groups)  # making room must not evict what is about to be copied
            if self.extend(sequence, sequence.length + 1):
                for page, copied in zip(sequence.own[0], source.pages, strict=True):
                    self.cache.copy(copied, page, common)
                sequence.length += common
            self._drop(source, self._groups)
        if self.extend(sequence, sequence.length + 1):  # also where only the source's own page was left
            return sequence
        self.release(sequence)
        return None

    def extend(self, sequence: SequencePages, length: int) -> bool:
        """Make room for `length` tokens; False, keeping what could be had, when pages run out.

        Groups with a window get pages for the next step's tokens only, as earlier ones come free.
        """
        while len(sequence) * PAGE < length:
            pages = [NO_PAGE] * len(self.windows)
            if not self._fill(pages, self._unbounded):
                self.free += _present(pages)
                return False
            sequence.own.append(pages)
        soon = -(-min(length, sequence.length + self.step_tokens) // PAGE)
        next_pages = sequence.own[: max(0, soon - len(sequence.shared))] if self._windowed else []
        return all(self._fill(pages, self._windowed) for pages in next_pages)

    def reserve(self, sequence: SequencePages, length: int) -> int:
        """Make room for up to `length` tokens; for how many there is room."""
        self.extend(sequence, length)
        return min(length, sequence.capacity())

    def share(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Move the sequence's full pages into the tree, and let go of pages that its windows have passed."""
        while (len(sequence.shared) + 1) * PAGE <= sequence.length:
            first = len(sequence.shared) * PAGE
            self._insert(sequence, tuple(tokens[first : first + PAGE]))
        starts = self._windows_start(sequence.length)
        for group in self._windowed:
            for node in sequence.shared[sequence.passed[group] : starts[group]]:
                self._leave(node, group)
        sequence.passed = starts

    def finish(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Release a sequence whose prefix is worth keeping, down to the last token."""
        self.share(sequence, tokens)
        rest = tuple(tokens[len(sequence.shared) * PAGE : sequence.length])
        if rest and self._closest(sequence.shared[-1] if sequence.shared else self.root, rest)[1] < len(rest):
            self._insert(sequence, rest)
        self.release(sequence)

    def release(self, sequence: SequencePages) -> None:
        """Give pages back; what the tree holds stays there until room is needed."""
        for place in reversed(range(len(sequence.shared))):
            groups = [group for group in self._groups if place >= sequence.passed[group]]
            self._drop(sequence.shared[place], groups)
        self.free += [page for pages in sequence.own for page in _present(pages)]
        sequence.shared, sequence.own, sequence.length = [], [], 0
        sequence.passed = [0] * len(self.windows)

    def discard(self, sequence: SequencePages) -> None:
        """Release a sequence whose values are not numbers, wiping every page that nobody else reads."""
        pages, nodes = [page for each in sequence.own for page in _present(each)], list(sequence.shared)
        self.release(sequence)
        for node in reversed(nodes):
            if (node, LEAF) in self.unused:
                pages += self._detach(node)
        self.cache.clear(pages)

    def _find(self, tokens: Sequence[int]) -> list[Prefix]:
        """The longest known prefix of all tokens but the last whose windows are whole."""
        path, node, whole = list[Prefix](), self.root, 0
        missing = [0] * len(self.windows)  # of each group: pages up to the last one that was taken away
        for end in range(PAGE, len(tokens), PAGE):
            child = node.children.get(tuple(tokens[end - PAGE : end]))
            if child is None:
                break
            path.append(node := child)
            missing = [
                len(path) if page == NO_PAGE else before for page, before in zip(node.pages, missing, strict=True)
            ]
            if all(map(le, missing, self._windows_start(end))):
                whole = len(path)
        return path[:whole]

    def _windows_start(self, length: int) -> list[int]:
        """Of each group, the first page that a query behind `length` tokens can see."""
        return [0 if window is None else max(0, length - window + 1) // PAGE for window in self.windows]

    def _insert(self, sequence: SequencePages, tokens: tuple[int, ...]) -> None:
        """Move the sequence's first own page, with these tokens, into the tree."""
        parent, pages = sequence.shared[-1] if sequence.shared else self.root, sequence.own.pop(0)
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = Prefix(parent, tokens, pages, [0] * len(pages))
        else:  # another sequence computed the same tokens, of which a window's pages may have been taken away
            for group, page in enumerate(pages):
                if node.pages[group] == NO_PAGE:
                    node.pages[group] = page
                else:
                    self.free.append(page)
        self._hold(node, self._groups)
        sequence.shared.append(node)

    def _hold(self, node: Prefix, groups: Sequence[int]) -> None:
        node.users += 1
        self.unused.pop((node, LEAF), None)
        for group in groups:
            node.readers[group] += 1
            self.unused.pop((node, group), None)

    def _leave(self, node: Prefix, group: int) -> None:
        """A sequence's window has passed the page: without other readers, it may be taken."""
        node.readers[group] -= 1
        if not node.readers[group] and self.windows[group]:
            self.unused[node, group] = None

    def _drop(self, node: Prefix, groups: Sequence[int]) -> None:
        for group in groups:
            self._leave(node, group)
        node.users -= 1
        if not node.users and not node.children:
            self.unused[node, LEAF] = None

    def _fill(self, pages: list[int], groups: Sequence[int]) -> bool:
        """A page for each of these groups that has none; False, keeping what could be had, when pages run out."""
        for group in groups:
            if pages[group] == NO_PAGE:
                page = self._take()
                if page is None:
                    return False
                pages[group] = page
        return True

    def _take(self) -> int | None:
        """A free page, else what went unused for longest."""
        while not self.free:
            if not self.unused:
                return None
            node, group = next(iter(self.unused))
            if group == LEAF:
                self._detach(node)
            else:
                del self.unused[node, group]
                self.free.append(node.pages[group])
                node.pages[group] = NO_PAGE
        return self.free.pop()

    def _detach(self, node: Prefix) -> list[int]:
        """Take an unused leaf out of the tree and free its pages, which are returned; its parent may be the next."""
        for group in (LEAF, *self._windowed):
            self.unused.pop((node, group), None)
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent is not self.root and not parent.users and not parent.children:
            self.unused[parent, LEAF] = None
            self.unused.move_to_end((parent, LEAF), last=False)
        pages = _present(node.pages)
        self.free += pages
        return pages

    @staticmethod
    def _closest(node: Prefix, tokens: Sequence[int]) -> tuple[Prefix | None, int]:
        """The child that shares the most leading tokens and has all its pages, and how many tokens."""
        best, most = None, 0
        for child in node.children.values():
            pairs = enumerate(zip(child.tokens, tokens, strict=False))
            common = next((i for i, (a, b) in pairs if a != b), min(len(child.tokens), len(tokens)))
            if common > most and NO_PAGE not in child.pages:
                best, most = child, common
        return best, most


def _present(pages: list[int]) -> list[int]:
    return [page for page in pages if page != NO_PAGE]
