"""The paged cache: what a token stores, the pages that hold it, and the tree of prefixes that requests share."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.quant.kv_cache import Entry, entries, pack, unpack


@dataclass(frozen=True)
class CacheSpec:
    """What one token stores in each layer: named rows with their shapes, in a float type or in 8 or 4 bits."""

    layers: int
    rows: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    bits: int | None = None

    def with_draft(self) -> "CacheSpec":
        """With the multi-token-prediction layer's rows behind the last layer's."""
        return replace(self, layers=self.layers + 1)

    def tensors(self) -> dict[str, Entry]:
        """What holds one token's rows in one layer: in 8 bits `k` and `k.scale`, in 4 also `k.minimum`."""
        if self.bits is None:
            return {name: (shape, self.dtype) for name, shape in self.rows.items()}
        packed = (entries(name, shape, self.bits) for name, shape in self.rows.items())
        return {name: entry for each in packed for name, entry in each.items()}

    @property
    def page_bytes(self) -> int:
        """Of one page over all layers."""
        return self.layers * PAGE * sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.tensors().values())


def parse_cache(name: str) -> int | None:
    """The bits of a cache format: `auto` is the model's own type, None."""
    known: dict[str, int | None] = {"auto": None, "int8": 8, "int4": 4}
    if name not in known:
        raise UserError(f"the cache format should be auto, int8 or int4, and is {name!r:.60}.")
    return known[name]


@dataclass(frozen=True)
class LayerCache:
    """One layer's pages: each of the spec's tensors as [pages, PAGE, *shape]."""

    layer: int
    rows: Mapping[str, torch.Tensor]
    spec: CacheSpec

    def write(self, name: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Put rows [tokens, *shape] into their slots."""
        bits = self.spec.bits
        for part, values in ({name: rows} if bits is None else pack(name, rows, bits)).items():
            self.rows[part].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, name: str, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of some pages, [len(pages), PAGE, *shape]."""
        bits = self.spec.bits
        if bits is None:
            return self.rows[name].index_select(0, pages).to(dtype)
        parts = {part: self.rows[part].index_select(0, pages) for part in entries(name, self.spec.rows[name], bits)}
        return unpack(name, parts, self.spec.rows[name][-1], bits, dtype)


class Cache:
    """Pages of every layer, layer-major."""

    def __init__(self, spec: CacheSpec, pages: int, device: torch.device):
        self.pages = pages
        self.rows = {
            name: _zeros((spec.layers, pages, PAGE, *shape), dtype, device)
            for name, (shape, dtype) in spec.tensors().items()
        }
        self.layers = [
            LayerCache(layer, {name: rows[layer] for name, rows in self.rows.items()}, spec)
            for layer in range(spec.layers)
        ]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of a page."""
        for rows in self.rows.values():
            rows[:, target, :count] = rows[:, source, :count]

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages whose values must not reach a later owner: a masked NaN still poisons a sum."""
        for rows in self.rows.values():
            rows[:, list(pages)] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are untouched pages of the operating system: a large pool costs nothing until it is used.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


@dataclass(eq=False)
class Prefix:
    """A node of the prefix tree: the tokens of one page after its parent's, full but for the last of a sequence."""

    parent: "Prefix | None"
    tokens: tuple[int, ...]
    page: int
    users: int = 0  # sequences that read this page; they read its ancestors too
    children: dict[tuple[int, ...], "Prefix"] = field(default_factory=dict)


@dataclass(eq=False)
class SequencePages:
    """Where one sequence's tokens lie: pages shared through the tree first, then pages of its own."""

    shared: list[Prefix] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    length: int = 0  # tokens whose rows are in the cache

    def __len__(self) -> int:
        return len(self.shared) + len(self.own)

    def ids(self) -> list[int]:
        return [node.page for node in self.shared] + self.own


class PagePool:
    """Hands out pages, takes them back, and keeps finished prefixes until their pages are needed."""

    def __init__(self, cache: Cache):
        self.cache = cache
        self.free = list(range(cache.pages))
        self.root = Prefix(None, (), -1)
        self.idle: OrderedDict[Prefix, None] = OrderedDict()  # leaves without users, longest unused first

    def start(self, tokens: Sequence[int]) -> SequencePages | None:
        """A sequence that begins with what the tree holds of `tokens` but the last; None without a page for it."""
        sequence, node, most = SequencePages(), self.root, len(tokens) - 1
        while sequence.length + PAGE <= most:
            child = node.children.get(tuple(tokens[sequence.length : sequence.length + PAGE]))
            if child is None:
                break
            node = child
            self._hold(node)
            sequence.shared.append(node)
            sequence.length += PAGE
        source, common = self._closest(node, tokens[sequence.length : most])
        if source is not None:
            self._hold(source)  # making room must not evict what is about to be copied
        page = self._take()
        if page is not None:
            sequence.own.append(page)
            if source is not None:
                self.cache.copy(source.page, page, common)
                sequence.length += common
        if source is not None:
            self._drop(source)
        if page is None:
            self.release(sequence)
            return None
        return sequence

    def extend(self, sequence: SequencePages, length: int) -> bool:
        """Make room for `length` tokens; False, keeping what could be had, when pages run out."""
        while len(sequence) * PAGE < length:
            page = self._take()
            if page is None:
                return False
            sequence.own.append(page)
        return True

    def share(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Move the sequence's full pages into the tree, where others with the same prefix find them."""
        while (len(sequence.shared) + 1) * PAGE <= sequence.length:
            first = len(sequence.shared) * PAGE
            parent = sequence.shared[-1] if sequence.shared else self.root
            page_tokens, page = tuple(tokens[first : first + PAGE]), sequence.own.pop(0)
            node = parent.children.get(page_tokens)
            if node is None:
                node = self._insert(parent, page_tokens, page)
            else:
                self.free.append(page)  # another sequence computed the same page meanwhile
            self._hold(node)
            sequence.shared.append(node)

    def finish(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Release a sequence whose prefix is worth keeping, down to the last token."""
        self.share(sequence, tokens)
        rest = tuple(tokens[len(sequence.shared) * PAGE : sequence.length])
        parent = sequence.shared[-1] if sequence.shared else self.root
        if rest and self._closest(parent, rest)[1] < len(rest):
            self._insert(parent, rest, sequence.own.pop(0))
        self.release(sequence)

    def release(self, sequence: SequencePages) -> None:
        """Give pages back; what the tree holds stays there until room is needed."""
        for node in reversed(sequence.shared):
            self._drop(node)
        self.free += sequence.own
        sequence.shared, sequence.own, sequence.length = [], [], 0

    def discard(self, sequence: SequencePages) -> None:
        """Release a sequence whose values are not numbers, wiping every page that nobody else reads."""
        pages, nodes = list(sequence.own), list(sequence.shared)
        self.release(sequence)
        for node in reversed(nodes):
            if node in self.idle:
                self._detach(node)
                self.free.append(node.page)
                pages.append(node.page)
        self.cache.clear(pages)

    def available(self) -> int:
        """Pages that no running sequence holds."""
        return len(self.free) + sum(not node.users for node in self.prefixes())

    def prefixes(self) -> Iterator[Prefix]:
        """Every node of the tree."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _insert(self, parent: Prefix, tokens: tuple[int, ...], page: int) -> Prefix:
        node = parent.children[tokens] = Prefix(parent, tokens, page)
        self.idle.pop(parent, None)
        self.idle[node] = None
        return node

    def _hold(self, node: Prefix) -> None:
        node.users += 1
        self.idle.pop(node, None)

    def _drop(self, node: Prefix) -> None:
        node.users -= 1
        if not node.users and not node.children:
            self.idle[node] = None

    def _take(self) -> int | None:
        """A free page, or that of the leaf that went unused for longest."""
        if self.free:
            return self.free.pop()
        if not self.idle:
            return None
        node = next(iter(self.idle))
        self._detach(node)
        return node.page

    def _detach(self, node: Prefix) -> None:
        """Take an idle leaf out of the tree; its parent may be the next to go."""
        del self.idle[node]
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent is not self.root and not parent.users and not parent.children:
            self.idle[parent] = None
            self.idle.move_to_end(parent, last=False)

    @staticmethod
    def _closest(node: Prefix, tokens: Sequence[int]) -> tuple[Prefix | None, int]:
        """The child that shares the most leading tokens, and how many."""
        best, most = None, 0
        for child in node.children.values():
            pairs = enumerate(zip(child.tokens, tokens, strict=False))
            common = next((i for i, (a, b) in pairs if a != b), min(len(child.tokens), len(tokens)))
            if common > most:
                best, most = child, common
        return best, most
