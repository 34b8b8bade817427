"""Step: the input tensors of one forward pass, at fixed addresses so that CUDA graphs can be replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genwright.kernels import PAGE


@dataclass(frozen=True)
class Chunk:
    """The tokens of one sequence that a step computes, and the sequence's page tables."""

    tokens: Sequence[int]
    start: int  # position of the first of them
    tables: Sequence[Sequence[int]]  # of each group of layers: the sequence's pages, with those for these tokens
    all_logits: bool = False  # whether logits of every token are wanted, or of the last one only


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
    _rope: dict[str, RopeTables] = field(default_factory=dict)

    def rope(self, kind: str) -> RopeTables:
        """cos and sin at the tokens' positions."""
        if kind not in self._rope:
            cos, sin = self.rope_tables[kind]
            self._rope[kind] = cos[self.positions], sin[self.positions]
        return self._rope[kind]

    @property
    def queries(self) -> int | None:
        """Tokens per sequence, or None if the sequences differ."""
        return self.groups[0].queries if len(self.groups) == 1 else None

    @property
    def most_queries(self) -> int:
        return max(group.queries for group in self.groups)


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
    ):
        self.rope_tables = rope_tables or {}
        self._sizes = [tokens, tokens, tokens, sequences, sequences + 1, *[tokens] * groups]
        self._flat = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self.page_tables = torch.zeros(groups, sequences, pages, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.logit_rows, self.lengths, self.offsets, *self.slots = self._split(self._flat)
        # Filled on the host and copied to the device in one transfer; on a CPU it is the storage itself.
        self._host = self._flat if device.type == "cpu" else torch.zeros_like(self._flat, device="cpu").pin_memory()
        self._parts = [part.numpy() for part in self._split(self._host)]

    @property
    def most_sequences(self) -> int:
        return self.page_tables.shape[1]

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, self._sizes)

    def fill(self, chunks: Sequence[Chunk], padded: int = 0) -> Step:
        """Write a step to the buffers; chunks of equal length should be next to each other.

        `padded` is the number of sequences of a CUDA graph, which all have the same number of tokens and whole page
        tables. Padding sequences have length 0 and slot -1, so that nothing is written for them.
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
        # A graph is replayed as its sequences grow, so it gets all their pages.
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
        """A step over the first rows of the buffers; their contents are read when it runs."""
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
