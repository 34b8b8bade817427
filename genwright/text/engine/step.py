"""Step: the tensors that one pass through the model reads, at addresses that never change."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from genwright.text.engine.kv import PAGE


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
    rope: tuple[torch.Tensor, torch.Tensor] | None = None  # cos and sin, set by the model's embed


class StepBuffers:
    """Fixed storage for steps of up to `tokens` tokens, `sequences` sequences and `pages` pages each."""

    def __init__(self, tokens: int, sequences: int, pages: int, device: torch.device):
        def buffer(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.tokens, self.positions, self.slots, self.logit_rows = (buffer(tokens) for _ in range(4))
        self.lengths, self.offsets = buffer(sequences), buffer(sequences + 1)
        self.page_table = buffer(sequences, pages)

    def fill(self, chunks: Sequence[Chunk]) -> Step:
        """Lay out a step; chunks of equal length should be neighbours."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        offsets = [0]
        groups: list[Group] = []
        for index, chunk in enumerate(chunks):
            count, first_row = len(chunk.tokens), len(tokens)
            span = range(chunk.start, chunk.start + count)
            tokens += chunk.tokens
            positions += span
            slots += [chunk.pages[position // PAGE] * PAGE + position % PAGE for position in span]
            offsets.append(len(tokens))
            logit_rows += range(first_row if chunk.all_logits else len(tokens) - 1, len(tokens))
            if groups and groups[-1].queries == count:
                groups[-1].count += 1
                groups[-1].length = max(groups[-1].length, span.stop)
            else:
                groups.append(Group(index, 1, count, first_row, span.stop))
        width = max(-(-group.length // PAGE) for group in groups)
        table = [[*chunk.pages[:width], *([0] * (width - len(chunk.pages)))] for chunk in chunks]
        page_table = self.page_table[: len(chunks), :width]
        page_table.copy_(torch.tensor(table))
        return Step(
            _set(self.tokens, tokens),
            _set(self.positions, positions),
            _set(self.slots, slots),
            page_table,
            _set(self.lengths, [chunk.start + len(chunk.tokens) for chunk in chunks]),
            _set(self.offsets, offsets),
            _set(self.logit_rows, logit_rows),
            groups,
        )


def _set(buffer: torch.Tensor, values: Sequence[int]) -> torch.Tensor:
    view = buffer[: len(values)]
    view.copy_(torch.tensor(values))
    return view
