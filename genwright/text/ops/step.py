"""Step: the input tensors of one forward pass, at fixed addresses so that CUDA graphs can be replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.device import upload
from genwright.kernels import PAGE

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Chunk:
    """The tokens of one sequence that a step computes, and the sequence's page tables.

    A token that only the device knows yet is written as `unread(i)`: element i of the tensor that `fill` is given.
    """

    tokens: Sequence[int]
    start: int  # position of the first of them
    tables: Sequence[Sequence[int]] | Int64s  # of each group of layers: the sequence's pages, also for these tokens
    logits: int = 1  # how many of the last tokens' logits are wanted
    prompt: int | None = None  # tokens of the sequence's prompt; None if all are


def unread(index: int) -> int:
    """The id that stands for element `index` of the tokens that are on the device only."""
    return -1 - index


def padding(tokens: int, logits: int = 0) -> Chunk:
    """Tokens of no sequence, which fill a CUDA graph: nothing is written for them, and they attend to nothing."""
    return Chunk([0] * tokens, -tokens, (), logits)


@dataclass
class QueryGroup:
    """Consecutive sequences of a step with the same number of queries, for backends that batch on the host."""

    first: int  # sequence
    count: int
    queries: int  # per sequence
    first_row: int
    length: int  # of the longest sequence
    # Cached by `attend_group`: by window and the number of heads that share a key-value head.
    masks: dict[tuple[int | None, int], Tensor | None] = field(default_factory=dict)

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.count * self.queries)

    @property
    def sequences(self) -> slice:
        return slice(self.first, self.first + self.count)


RopeTables = tuple[Tensor, Tensor]  # cos and sin of every position, [context, 1, rope_dim / 2]


@dataclass
class Step:
    """Views of the buffers: T tokens of B sequences with up to P pages each; logits are wanted for R rows.

    There is one page table and one tensor of slots for each group of layers that shares pages (`LayerCache.group`).
    """

    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Sequence[Tensor]  # [T], where each token's row is written in the cache: page * PAGE + offset
    page_tables: Sequence[Tensor]  # [B, P]
    lengths: Tensor  # [B], tokens in the cache after this step's are written
    offsets: Tensor  # [B + 1], the first row of each sequence's queries
    logit_rows: Tensor  # [R]
    groups: list[QueryGroup]
    rope_tables: Mapping[str, RopeTables] = field(default_factory=dict)  # by the name of the model's kind of RoPE
    last_layer: int | None = None  # None if the hidden states of all tokens are needed after it
    _rope: dict[str, RopeTables] = field(default_factory=dict)
    _each_token: "Step | None" = None

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of x [T, ...] whose logits are wanted."""
        return x if len(self.logit_rows) == len(x) else x[self.logit_rows]

    def needed(self, layer: int, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that a layer computes after its attention: of the last layer, only those whose logits are wanted."""
        return (self.wanted(x), self.wanted(attended)) if layer == self.last_layer else (x, attended)

    @property
    def each_token(self) -> "Step":
        """This step with each token as a sequence of its own, up to that token."""
        if all(group.queries == 1 for group in self.groups):
            return self
        if self._each_token is None:
            rows = torch.arange(len(self.tokens) + 1, device=self.tokens.device)
            sequence = torch.searchsorted(self.offsets, rows[:-1], right=True) - 1
            longest = max(group.length for group in self.groups)
            self._each_token = replace(
                self,
                page_tables=[table[sequence] for table in self.page_tables],
                lengths=self.positions + 1,
                offsets=rows,
                groups=[QueryGroup(0, len(self.tokens), 1, 0, longest)],
            )
        return self._each_token

    def rope(self, kind: str) -> RopeTables:
        """cos and sin at the tokens' positions."""
        if kind not in self._rope:
            cos, sin = self.rope_tables[kind]
            self._rope[kind] = cos[self.positions], sin[self.positions]
        return self._rope[kind]


@dataclass(frozen=True)
class Layout:
    """The sizes of a step."""

    tokens: int
    logits: int
    sequences: int
    width: int | None  # pages of a page table; None for all that there is room for
    groups: list[QueryGroup]

    def for_graph(self) -> "Layout":
        """The same for any pages: a CUDA graph reads none beyond a sequence's length either."""
        return replace(self, width=None)


class StepBuffers:
    """Storage for steps of up to `tokens` tokens and `sequences` sequences with up to `pages` pages each."""

    def __init__(
        self,
        tokens: int,
        sequences: int,
        pages: int,
        device: torch.device,
        groups: int = 1,  # of layers, with a page table each
        rope_tables: Mapping[str, RopeTables] | None = None,
        last_layer: int | None = None,
    ):
        self.rope_tables, self.last_layer = rope_tables or {}, last_layer
        self._sizes = [tokens, tokens, tokens, sequences, sequences + 1, *[tokens] * groups]
        self._flat = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self.page_tables = torch.zeros(groups, sequences, pages, dtype=torch.int64, device=device)
        parts = torch.split(self._flat, self._sizes)
        self.tokens, self.positions, self.logit_rows, self.lengths, self.offsets, *_ = parts
        self.slots = self._flat[-groups * tokens :].view(groups, tokens)
        self._starts = np.cumsum([0, *self._sizes[:-1]]).tolist()  # of the parts
        self._sent = np.zeros((0, 0, 0), np.int64)  # the page tables that are in the buffers

    def fill(self, chunks: Sequence[Chunk], known: Tensor | None = None) -> Step:
        """Write a step to the buffers, as `write` does; chunks of equal length should be neighbours."""
        return self.view(self.write(chunks, known=known))

    def write(
        self, chunks: Sequence[Chunk], known: Tensor | None = None, further: int = 0, least_logits: int = 0
    ) -> Layout:
        """Write the inputs of a step without waiting for the device.

        `known` [n] has the tokens that are on the device only. `further` is the number of tokens per sequence that the
        device will append by itself. A graph reads `least_logits` rows, of which the layout has those that are wanted.
        """
        shape = _shape(tuple([len(chunk.tokens) for chunk in chunks]), tuple([chunk.logits for chunk in chunks]))
        starts = np.array([chunk.start for chunk in chunks], np.int64)
        lengths, places = starts + shape.counts, starts[shape.sequence] + shape.place
        tokens = np.fromiter(chain.from_iterable([chunk.tokens for chunk in chunks]), np.int64, len(places))
        longest = min(int(lengths.max()) + further, self.page_tables.shape[2] * PAGE)
        tables = self._pages(chunks, -(-longest // PAGE))
        positions = places.clip(0)  # negative in padding
        slots = tables[:, shape.sequence, positions // PAGE] * PAGE + positions % PAGE
        slots[:, places < 0] = -1
        missing = max(0, least_logits - len(shape.logit_rows))
        logit_rows = np.pad(shape.logit_rows, (0, missing)) if missing else shape.logit_rows
        self._send([tokens, positions, logit_rows, lengths, shape.offsets, *slots], tables, known)
        groups = shape.query_groups(lengths)
        return Layout(len(tokens), len(shape.logit_rows), len(lengths), tables.shape[2], groups)

    def _pages(self, chunks: Sequence[Chunk], width: int) -> Int64s:
        """The page tables [groups, sequences, width]."""
        groups = len(self.slots)
        parts = [np.asarray(chunk.tables, np.int64).reshape(groups, -1)[:, :width] for chunk in chunks]
        if len(parts) == 1:
            return parts[0][:, None]
        widths = np.fromiter((part.shape[1] for part in parts), np.int64, len(parts))
        sequence = np.repeat(np.arange(len(parts)), widths)
        column = np.arange(len(sequence)) - np.repeat(widths.cumsum() - widths, widths)
        tables = np.zeros((groups, len(chunks), width), np.int64)
        tables[:, sequence, column] = np.concatenate(parts, axis=1)
        return tables

    def _send(self, values: Sequence[Int64s], tables: Int64s, known: Tensor | None) -> None:
        """Copy values to the start of each buffer in one transfer, and the page tables if they have changed.

        Tokens that only the device knows take the place of `unread` ids. A row with a NaN has the token -1; its
        sequence ends as soon as the host reads that.
        """
        on_gpu = self._flat.is_cuda
        flat = torch.empty(len(self._flat), dtype=torch.int64, pin_memory=True) if on_gpu else self._flat
        host = flat.numpy()
        for start, value in zip(self._starts, values, strict=True):
            host[start : start + len(value)] = value
        if on_gpu:
            from genwright.kernels.triton.step_inputs import write_inputs

            write_inputs(self._flat, upload(flat, self._flat.device), known, len(values[0]))
        elif known is not None:
            ids = self.tokens[: len(values[0])]
            ids.copy_(torch.where(ids < 0, known[(-1 - ids).clamp(min=0)].clamp(min=0), ids))
        if np.array_equal(tables, self._sent):
            return
        self._sent = tables
        pages = upload(torch.from_numpy(tables), self._flat.device)
        self.page_tables[:, : tables.shape[1], : tables.shape[2]].copy_(pages)

    def view(self, layout: Layout) -> Step:
        """A step over the first rows of the buffers; their contents are read when it runs."""
        tokens, sequences = layout.tokens, layout.sequences
        return Step(
            self.tokens[:tokens],
            self.positions[:tokens],
            [slots[:tokens] for slots in self.slots],
            list(self.page_tables[:, :sequences, : layout.width]),
            self.lengths[:sequences],
            self.offsets[: sequences + 1],
            self.logit_rows[: layout.logits],
            layout.groups,
            self.rope_tables,
            self.last_layer,
        )


@dataclass(frozen=True)
class _Shape:
    """What follows from the numbers of tokens alone."""

    counts: Int64s  # [sequences]
    sequence: Int64s  # [tokens]
    place: Int64s  # [tokens], in its chunk
    offsets: Int64s
    logit_rows: Int64s
    runs: list[int]  # the first sequence of each run with the same number of tokens, and the end

    def query_groups(self, lengths: Int64s) -> list[QueryGroup]:
        return [
            QueryGroup(
                first, end - first, int(self.counts[first]), int(self.offsets[first]), int(lengths[first:end].max())
            )
            for first, end in pairwise(self.runs)
        ]


@lru_cache(maxsize=64)  # decoding repeats a few shapes
def _shape(counts: tuple[int, ...], wanted: tuple[int, ...]) -> _Shape:
    """The shape of a step."""
    numbers = np.array(counts, np.int64)
    offsets = np.concatenate(([0], numbers.cumsum()))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], numbers)
    logit_rows = np.flatnonzero(place >= np.repeat(numbers - np.array(wanted), numbers))
    if not len(logit_rows):
        logit_rows = offsets[-1:] - 1  # an output of no rows would be a special case of every product
    runs = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(counts)]
    return _Shape(numbers, np.repeat(np.arange(len(counts)), numbers), place, offsets, logit_rows, runs)
