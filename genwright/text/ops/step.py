"""Step: the tensors that one pass through the model reads, at addresses that never change."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from genwright.text.cache.layout import PAGE


@dataclass(frozen=True)
class Chunk:
    """The tokens of one sequence that a step computes, and where the sequence's cache lies."""

    tokens: Sequence[int]
    start: int  # position of the first of them
    pages: Sequence[int]  # of the whole sequence, up to and with these tokens
    all_logits: bool = False  # of every token, not of the last alone


@dataclass
class Group:
    """Neighbouring sequences of a step that have equally many queries, for backends that batch on the host."""

    first: int  # sequence
    count: int
    queries: int  # per sequence
    first_row: int
    length: int  # of the longest of them
    # By window and number of heads that share a key-value head, filled by `attend`.
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


@dataclass
class Step:
    """Views on the buffers: T tokens of B sequences with up to P pages each, logits wanted for R rows."""

    tokens: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T], where in the cache each token's row goes: page * PAGE + offset
    page_table: torch.Tensor  # [B, P]
    lengths: torch.Tensor  # [B], tokens in the cache once this step has written its own
    offsets: torch.Tensor  # [B + 1], the first row of each sequence's queries
    logit_rows: torch.Tensor  # [R]
    groups: list[Group]
    tables: tuple[torch.Tensor, torch.Tensor] | None = None  # cos and sin of every position, set by the model's embed

    @cached_property
    def rope(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """cos and sin of the tokens' positions."""
        return None if self.tables is None else (self.tables[0][self.positions], self.tables[1][self.positions])

    @property
    def queries(self) -> int | None:
        """Tokens per sequence, where all have equally many."""
        return self.groups[0].queries if len(self.groups) == 1 else None

    @property
    def most_queries(self) -> int:
        return max(group.queries for group in self.groups)


class StepBuffers:
    """Fixed storage for steps of up to `tokens` tokens, `sequences` sequences and `pages` pages each."""

    def __init__(self, tokens: int, sequences: int, pages: int, device: torch.device):
        self._sizes = [tokens, tokens, tokens, tokens, sequences, sequences + 1]
        self._flat = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self.page_table = torch.zeros(sequences, pages, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.slots, self.logit_rows, self.lengths, self.offsets = self._split(self._flat)
        # Written here and sent in one piece; on a CPU this is the storage itself.
        self._host = self._flat if device.type == "cpu" else torch.zeros_like(self._flat, device="cpu").pin_memory()
        self._parts = [part.numpy() for part in self._split(self._host)]

    def _split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return flat.split(self._sizes)

    def fill(self, chunks: Sequence[Chunk], padded: int = 0) -> Step:
        """Lay out a step; chunks of equal length should be neighbours.

        With `padded`, for a graph: so many sequences of equally many tokens and the whole page table; those beyond the
        chunks have length 0 and write to no slot.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        lengths: list[int] = []
        offsets = [0]
        groups: list[Group] = []
        for index, chunk in enumerate(chunks):
            count, first_row = len(chunk.tokens), len(tokens)
            span = range(chunk.start, chunk.start + count)
            tokens += chunk.tokens
            positions += span
            slots += [chunk.pages[position // PAGE] * PAGE + position % PAGE for position in span]
            offsets.append(len(tokens))
            lengths.append(span.stop)
            logit_rows += range(first_row if chunk.all_logits else len(tokens) - 1, len(tokens))
            if groups and groups[-1].queries == count:
                groups[-1].count += 1
                groups[-1].length = max(groups[-1].length, span.stop)
            else:
                groups.append(Group(index, 1, count, first_row, span.stop))
        # A graph's sequences grow, so it is told all their pages.
        width = max(len(chunk.pages) for chunk in chunks) if padded else max(-(-g.length // PAGE) for g in groups)
        table = [[*chunk.pages[:width], *([0] * (width - len(chunk.pages)))] for chunk in chunks]
        self.page_table[: len(chunks), :width].copy_(torch.tensor(table))
        missing = max(0, padded - len(chunks))
        if missing:
            queries = groups[0].queries
            rows = missing * queries
            offsets += range(offsets[-1] + queries, offsets[-1] + rows + 1, queries)
            logit_rows += range(len(tokens), len(tokens) + rows)
            tokens += [0] * rows
            positions += [0] * rows
            slots += [-1] * rows
            lengths += [0] * missing
            groups[0].count += missing
        values = (tokens, positions, slots, logit_rows, lengths, offsets)
        for part, each in zip(self._parts, values, strict=True):
            part[: len(each)] = each
        if self._host is not self._flat:
            self._flat.copy_(self._host)
        return self.view([len(each) for each in values], padded or len(chunks), None if padded else width, groups)

    def view(self, sizes: Sequence[int], sequences: int, width: int | None, groups: list[Group]) -> Step:
        """A step over the first rows of the storage, whatever they hold when it is run."""
        parts = [part[:size] for part, size in zip(self._split(self._flat), sizes, strict=True)]
        tokens, positions, slots, logit_rows, lengths, offsets = parts
        table = self.page_table[:sequences, :width]
        return Step(tokens, positions, slots, table, lengths, offsets, logit_rows, groups)
