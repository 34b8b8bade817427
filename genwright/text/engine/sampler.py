"""Sampler: a batch of logits to tokens on the device; the noise depends only on seed, sample, position and token id.

`genwright.kernels.sampling` defines how a token is drawn, of all tokens or of those that a grammar allows. Before that,
in this order, penalties, biases and the minimum length change the logits of requests that have them. What these need to
know of a request, the counts of its tokens and its biases, stays on the device while the request runs, and nothing here
waits for the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.device import upload
from genwright.kernels import sampling
from genwright.rng import key
from genwright.text.engine.request import Request
from genwright.text.engine.vocabulary_ranks import VocabularyRanks

_MIN_TEMPERATURE = 1e-37  # about the smallest normal float32
_IN_PROMPT = 1 << 30  # a bit of a token's count in the answer: it occurs in the prompt
_CHUNK = 1 << 23  # logits adjusted at a time, because each operation needs memory for its result
_NONE = 0  # the row of a table that stays zero, for requests that need none
Masks = tuple[NDArray[np.int32], NDArray[np.int32]]  # the fields of sampling.Allowed


@dataclass(frozen=True)
class _State:
    """What the sampler keeps of a request."""

    settings: bytes  # the int32 words of `sampling`, without the position
    counts: int  # its row in the table, or _NONE
    biases: int
    penalties: tuple[int, ...]  # their float32 bits
    ends: list[int]
    first_end: int  # the first position at which an end id is allowed


@dataclass(frozen=True)
class _Adjusted:
    """The rows of a batch whose logits change before a token is drawn."""

    table: Tensor  # int32 [rows, 6]: the row, its rows of counts and biases, and the float32 bits of its penalties
    penalised: bool  # whether any row is
    biased: bool


class _Table:
    """Rows [vocab] on the device, lent to requests; it grows when all are in use. Row 0 is never lent."""

    def __init__(self, vocab: int, dtype: torch.dtype, device: torch.device):
        self.rows = torch.zeros(0, vocab, dtype=dtype, device=device)
        self._free: list[int] = []

    def take(self) -> int:
        """The number of a row of zeros."""
        if not self._free:
            count, vocab = self.rows.shape
            self.rows = torch.cat((self.rows, self.rows.new_zeros(max(count, 4), vocab)))
            self._free = list(range(max(count, 1), len(self.rows)))
        row = self._free.pop()
        self.rows[row].zero_()
        return row

    def give_back(self, row: int) -> None:
        if row != _NONE:
            self._free.append(row)


class Sampler:
    """Samples the tokens of requests; `fused`: by the Triton kernel, otherwise by its definition on the host."""

    def __init__(self, vocab: int, device: torch.device, fused: bool, ranks: VocabularyRanks | None = None):
        self.vocab, self.device, self._ranks, self._fused = vocab, device, ranks, fused
        self._draw: Callable[[Tensor, Tensor, sampling.Allowed | None], Tensor] = sampling.draw
        if fused:
            from genwright.kernels.triton.sample import sample

            self._draw = sample
        self._states: dict[Request, _State] = {}
        self._counts = _Table(vocab, torch.int32, device)
        self._biases = _Table(vocab, torch.float32, device)

    def sample(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        positions: Sequence[int],
        before: Tensor | None = None,
        masks: Masks | None = None,
    ) -> Tensor:
        """Sample the token at each position from its row of logits; int64 [rows], -1 where a row has a NaN.

        logits [rows, vocab], or of this rank's part of the vocabulary. before, int64 [rows, k] padded with -1, are
        proposed tokens that follow the request's own and precede the row's; without it the sampled tokens are added to
        the requests' counts, and a request has one row. masks are the tokens that may be sampled.
        """
        assert len(logits) == len(requests) == len(positions)
        states = [self._states.get(request) or self._admit(request) for request in requests]
        settings = _joined(states, positions)
        adjusts = [row for row, s in enumerate(states) if s.counts or s.biases]
        adjusted = self._adjusted(states, adjusts) if adjusts else None
        ends = [(row, end) for row, s in enumerate(states) if positions[row] < s.first_end for end in s.ends]
        if self._ranks is not None or adjusts or ends or not self._fused:
            logits = logits.float()
        if self._ranks is not None:
            logits = self._ranks.candidates(logits, None if adjusts or ends or masks else settings)
        assert logits.shape[1] == self.vocab
        if adjusted is not None:
            logits = self._adjust(logits, adjusted, before)
        if ends:
            row_of, end = self._upload(np.array(ends).T)
            logits = logits.index_put((row_of, end), logits[row_of, end] - math.inf)  # so that a NaN stays one
        tokens = self._draw(logits, self._upload(settings), masks and sampling.Allowed(*map(self._upload, masks)))
        if self._ranks is not None:
            tokens = self._ranks.agree(tokens)
        if adjusted is not None and before is None:
            self._count_drawn(adjusted, tokens)
        return tokens

    def whole(self, logits: Tensor) -> Tensor:
        """Logits of the whole vocabulary, of which each rank may have a part, in float32."""
        logits = logits.float()
        return logits if self._ranks is None else self._ranks.candidates(logits, None)

    def settings(self, requests: Sequence[Request], positions: Sequence[int]) -> NDArray[np.int32] | None:
        """The words of `sampling` for each request, from which alone a token can be drawn; None if one needs more."""
        states = [self._states.get(request) or self._admit(request) for request in requests]
        pairs = zip(states, positions, strict=True)
        if any(s.counts or s.biases or (s.ends and position < s.first_end) for s, position in pairs):
            return None
        return _joined(states, positions)

    def count(self, request: Request, tokens: list[int]) -> None:
        """Add accepted tokens to a request's counts, after rows that were sampled with `before`."""
        state = self._states.get(request)
        if state is not None and state.counts != _NONE and tokens:
            self._add(self._counts.rows[state.counts], self._upload(np.array(tokens)))

    def release(self, request: Request) -> None:
        """Forget a request; if it is sampled again, its state is made from its tokens."""
        state = self._states.pop(request, None)
        if state is not None:
            self._counts.give_back(state.counts)
            self._biases.give_back(state.biases)

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The model's log-probabilities of tokens [rows], those of the `top` most likely ones, and their ids."""
        scores = self.whole(logits).log_softmax(dim=-1)
        values, ids = scores.topk(min(top, self.vocab), dim=-1)
        return scores.gather(1, tokens.clamp(min=0)[:, None])[:, 0], values, ids

    def _admit(self, request: Request) -> _State:
        """Make the state of a request from its parameters and tokens."""
        p = request.params
        counts = biases = _NONE
        if p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty:
            counts = self._counts.take()
            tokens = self._upload(np.array(request.tokens))
            row = self._counts.rows[counts]
            row.index_fill_(0, tokens[: request.prompt_tokens], _IN_PROMPT)
            self._add(row, tokens[request.prompt_tokens :])
        if p.logit_bias:
            biases = self._biases.take()
            ids = self._upload(np.array(list(p.logit_bias)))
            self._biases.rows[biases, ids] = self._upload(np.array(list(p.logit_bias.values()), np.float32))
        penalties = np.array((p.repetition_penalty, p.presence_penalty, p.frequency_penalty), np.float32)
        self._states[request] = _State(
            settings=_settings(request, self.vocab),
            counts=counts,
            biases=biases,
            penalties=tuple(penalties.view(np.int32).tolist()),
            ends=sorted(request.ends),
            first_end=request.prompt_tokens + p.min_new_tokens,
        )
        return self._states[request]

    def _adjusted(self, states: list[_State], rows: list[int]) -> _Adjusted:
        table = [(row, states[row].counts, states[row].biases, *states[row].penalties) for row in rows]
        return _Adjusted(
            self._upload(np.array(table, np.int32)),
            penalised=any(states[row].counts for row in rows),
            biased=any(states[row].biases for row in rows),
        )

    def _adjust(self, logits: Tensor, adjusted: _Adjusted, before: Tensor | None) -> Tensor:
        """Logits after penalties and biases; they change nothing in a row that has none."""
        changed = []
        for part in adjusted.table.split(max(_CHUNK // self.vocab, 1)):
            rows = part[:, 0]
            x = logits.index_select(0, rows)
            if adjusted.penalised:
                counts = self._counts.rows.index_select(0, part[:, 1])
                if before is not None:
                    proposed = before.index_select(0, rows)
                    counts.scatter_add_(1, proposed.clamp(min=0), (proposed >= 0).int())
                x = _penalise(x, counts, *part[:, 3:, None].view(torch.float32).unbind(1))
            if adjusted.biased:
                x = x + self._biases.rows.index_select(0, part[:, 2])
            changed.append(x)
        x = torch.cat(changed)
        return x if len(x) == len(logits) else logits.index_copy(0, adjusted.table[:, 0].long(), x)

    def _count_drawn(self, adjusted: _Adjusted, tokens: Tensor) -> None:
        if adjusted.penalised:
            rows, counts = adjusted.table[:, :2].long().unbind(1)
            drawn = tokens[rows]
            counted = (counts != _NONE) & (drawn >= 0)
            self._counts.rows.view(-1).index_add_(0, counts * self.vocab + drawn.clamp(min=0), counted.int())

    def _add(self, counts: Tensor, tokens: Tensor) -> None:
        counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))

    def _upload(self, array: NDArray[Any]) -> Tensor:
        return upload(torch.from_numpy(array), self.device)


def _settings(request: Request, vocab: int) -> bytes:
    """The words of `sampling` as bytes; the position is 0."""
    p = request.params
    words = np.zeros(sampling.WORDS, np.int32)
    numbers = words.view(np.float32)
    words.view(np.uint32)[sampling.KEY] = key(request.seed, request.sample)
    words[sampling.TOP_K] = min(p.top_k or vocab, vocab)
    numbers[sampling.INVERSE_TEMPERATURE] = 1 / max(p.temperature, _MIN_TEMPERATURE) if p.temperature else 0
    numbers[sampling.TOP_P] = p.top_p
    numbers[sampling.LOG_MIN_P] = math.log(p.min_p) if p.min_p else -math.inf
    return words.tobytes()


def _joined(states: Sequence[_State], positions: Sequence[int]) -> NDArray[np.int32]:
    """The settings [rows, words] of these requests at these positions."""
    words = np.frombuffer(bytearray(b"".join([state.settings for state in states])), np.int32)
    settings = words.reshape(len(states), -1)
    settings[:, sampling.POSITION] = positions
    return settings


def _penalise(x: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """Logits [rows, vocab] after penalties [rows, 1] of tokens that occurred in the prompt or in the answer."""
    # Products with 0 and 1 are exact, and several times as fast on a CPU as comparisons and torch.where.
    seen = counts.clamp(max=1).float()
    factor = seen * repetition + (1 - seen)
    x = x.clamp(min=0) / factor + x.clamp(max=0) * factor
    answer = (counts & (_IN_PROMPT - 1)).float()
    return x - (answer.clamp(max=1) * presence + answer * frequency)
