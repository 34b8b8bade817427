"""Step: the tensors that one pass through the model reads, at addresses that never change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from genwright.kernels import PAGE


@dataclass(frozen=True)
class Chunk:
    """The tokens of one sequence that a step computes, and where the sequence's cache lies."""

    tokens: Sequence[int]
    start: int  # position of the first of them
    tables: Sequence[Sequence[int]]  # of each group of layers: the whole sequence's pages, with these tokens' own
    all_logits: bool = False  # of every token, not of the last alone


@dataclass
class QueryGroup:
    """Neighbouring sequences of a step that have equally many queries, for backends that batch on the host."""

    first: int  # sequence
    count: int
    queries: int  # per sequence
    first_row: int
    length: int  # of the longest of them
    # By window and number of heads that share a key-value head, filled by `attend_group`.
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.count * self.queries)

    @property
    def sequences(self) -> slice:
        return slice(self.first, self.first + self.count)


RopeTables = tuple[torch.Tensor, torch.Tensor]  # cos and sin of every position, [context, 1, rope_dim / 2]


@dataclass
class Step:
    """Views on the buffers: T tokens of B sequences with up to P pages each, logits wanted for R rows.

    Page tables and slots are those of each group of layers that shares pages (`LayerCache.group`).
    """

    tokens: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slots: Sequence[torch.Tensor]  # [T], where in the cache each token's row goes: page * PAGE + offset
    page_tables: Sequence[torch.Tensor]  # [B, P]
    lengths: torch.Tensor  # [B], tokens in the cache once this step has written its own
    offsets: torch.Tensor  # [B + 1], the first row of each sequence's queries
    logit_rows: torch.Tensor  # [R]
    groups: list[QueryGroup]
    rope_tables: Mapping[str, RopeTables] = field(default_factory=dict)  # by the name of a model's kind of RoPE
    _rope: dict[str, RopeTables] = field(default_factory=dict)

    def rope(self, kind: str) -> RopeTables:
        """cos and sin of the tokens' positions."""
        if kind not in self._rope:
            cos, sin = self.rope_tables[kind]
            self._rope[kind] = cos[self.positions], sin[self.positions]
        return self._rope[kind]

    @property
    def queries(self) -> int | None:
        """Tokens per sequence, where all have equally many."""
        return self.groups[0].queries if len(self.groups) == 1 else None

    @property
    def most_queries(self) -> int:
        return max(group.queries for group in self.groups)


class StepBuffers:
    """Fixed storage for steps of up to `tokens` tokens, `sequences` sequences and `pages` pages each."""

    def __init__(
        self,
        tokens: int,
        sequences: int,
        pages: int,
        device: torch.device,
        groups: int = 1,  # of layers, with a page table each
        rope_tables: Mapping[str, RopeTables] | None = None,
    ):
        self.rope_tables = rope_tables or {}
        self._sizes = [tokens, tokens, tokens, sequences, sequences + 1, *[tokens] * groups]
        self._flat = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self.page_tables = torch.zeros(groups, sequences, pages, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.logit_rows, self.lengths, self.offsets, *self.slots = self._split(self._flat)
        # Written here and sent in one piece; on a CPU this is the storage itself.
        self._host = self._flat if device.type == "cpu" else torch.zeros_like(self._flat, device="cpu").pin_memory()
        self._parts = [part.numpy() for part in self._split(self._host)]

    @property
    def most_sequences(self) -> int:
        return self.page_tables.shape[1]

    def _split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(flat, self._sizes)

    def fill(self, chunks: Sequence[Chunk], padded: int = 0) -> Step:
        """Lay out a step; chunks of equal length should be neighbours.

        With `padded`, for a graph: so many sequences of equally many tokens and the whole page table; those beyond the
        chunks have length 0 and write to no slot.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[list[int]] = [[] for _ in self.slots]
        logit_rows: list[int] = []
        lengths: list[int] = []
        offsets = [0]
        groups: list[QueryGroup] = []
        for index, chunk in enumerate(chunks):
            count, first_row = len(chunk.tokens), len(tokens)
            span = range(chunk.start, chunk.start + count)
            tokens += chunk.tokens
            positions += span
            for each, table in zip(slots, chunk.tables, strict=True):
                each += [table[position // PAGE] * PAGE + position % PAGE for position in span]
            offsets.append(len(tokens))
            lengths.append(span.stop)
            logit_rows += range(first_row if chunk.all_logits else len(tokens) - 1, len(tokens))
            if groups and groups[-1].queries == count:
                groups[-1].count += 1
                groups[-1].length = max(groups[-1].length, span.stop)
            else:
                groups.append(QueryGroup(index, 1, count, first_row, span.stop))
        # A graph's sequences grow, so it is told all their pages.
        width = max(len(c.tables[0]) for c in chunks) if padded else max(-(-g.length // PAGE) for g in groups)
        tables = [
            [[*t[:width], *([0] * (width - len(t)))] for t in each]
            for each in zip(*(c.tables for c in chunks), strict=True)
        ]
        self.page_tables[:, : len(chunks), :width].copy_(torch.tensor(tables))
        missing = max(0, padded - len(chunks))
        if missing:
            queries = groups[0].queries
            rows = missing * queries
            offsets += range(offsets[-1] + queries, offsets[-1] + rows + 1, queries)
            logit_rows += range(len(tokens), len(tokens) + rows)
            tokens += [0] * rows
            positions += [0] * rows
            for each in slots:
                each += [-1] * rows
            lengths += [0] * missing
            groups[0].count += missing
        values = (tokens, positions, logit_rows, lengths, offsets, *slots)
        for part, each in zip(self._parts, values, strict=True):
            part[: len(each)] = each
        if self._host is not self._flat:
            self._flat.copy_(self._host)
        return self.view(len(tokens), len(logit_rows), padded or len(chunks), None if padded else width, groups)

    def view(self, tokens: int, logits: int, sequences: int, width: int | None, groups: list[QueryGroup]) -> Step:
        """A step over the first rows of the storage, whatever they hold when it is run."""
        return Step(
            self.tokens[:tokens],
            self.positions[:tokens],
            [slots[:tokens] for slots in self.slots],
            list(self.page_tables[:, :sequences, :width]),
            self.lengths[:sequences],
            self.offsets[: sequences + 1],
            self.logit_rows[:logits],
            groups,
            self.rope_tables,
        )
