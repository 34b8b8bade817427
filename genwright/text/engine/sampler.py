"""Sampler: a batch of logits to tokens on the device; the noise depends only on seed, sample, position and token id.

`genwright.kernels.sampling` defines how a token is drawn. Before that, in this order, penalties, biases, the minimum
length and allowed tokens change the logits of requests that have them. What these need to know of a request, the counts
of its tokens and its biases, stays on the device while the request runs, and nothing here waits for the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.kernels import sampling
from genwright.rng import key
from genwright.text.engine.request import Request

_MIN_TEMPERATURE = 1e-37  # about the smallest normal float32
_IN_PROMPT = 1 << 30  # a bit of a token's count in the answer: it occurs in the prompt
_CHUNK = 1 << 23  # logits adjusted at a time, because each operation needs memory for its result
_NONE = -1  # in place of a table's row: the request has none


@dataclass(frozen=True)
class _State:
    """What the sampler keeps of a request."""

    settings: bytes  # the int32 words of `sampling`, without the position
    counts: int  # its row in the table, or _NONE
    biases: int
    adjusts: bool  # whether it has penalties or biases
    adjustment: tuple[int, ...]  # counts, biases, and the float32 bits of the penalties
    ends: list[int]
    first_end: int  # the first position at which an end id is allowed


class _Table:
    """Rows [vocab] on the device, lent to requests; it grows when all are in use."""

    def __init__(self, vocab: int, dtype: torch.dtype, device: torch.device):
        self.rows = torch.zeros(0, vocab, dtype=dtype, device=device)
        self._free: list[int] = []

    def take(self) -> int:
        """The number of a row of zeros."""
        if not self._free:
            count, vocab = self.rows.shape
            self.rows = torch.cat((self.rows, self.rows.new_zeros(max(count, 4), vocab)))
            self._free = list(range(count, len(self.rows)))
        row = self._free.pop()
        self.rows[row].zero_()
        return row

    def give_back(self, row: int) -> None:
        if row != _NONE:
            self._free.append(row)


class Sampler:
    """Samples the tokens of requests; `fused`: by the Triton kernel, otherwise by its definition on the host."""

    def __init__(self, vocab: int, device: torch.device, fused: bool):
        self.vocab, self.device = vocab, device
        self._draw: Callable[[Tensor, Tensor], Tensor] = sampling.draw
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
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Sample the token at each position from its row of logits; int64 [rows], -1 where a row has a NaN.

        logits float32 [rows, vocab]. before, int64 [rows, k] padded with -1, are proposed tokens that follow the
        request's own and precede the row's; without it the sampled tokens are added to the requests' counts, and a
        request has one row. allowed, int32 [rows, vocab / 32 rounded up], has a bit for each token that may be sampled.
        """
        assert logits.shape == (len(requests), self.vocab) and len(requests) == len(positions)
        states = [self._states.get(request) or self._admit(request) for request in requests]
        settings = np.frombuffer(bytearray(b"".join([s.settings for s in states])), np.int32)
        settings = settings.reshape(len(states), -1)
        settings[:, sampling.POSITION] = positions
        adjusted = [(row, *s.adjustment) for row, s in enumerate(states) if s.adjusts or allowed is not None]
        ends = [(row, end) for row, s in enumerate(states) if positions[row] < s.first_end for end in s.ends]
        if adjusted or ends:
            logits = logits.clone()
        adjustments = self._upload(np.array(adjusted, np.int32).reshape(-1, 6)) if adjusted else None
        if adjustments is not None:
            self._adjust(logits, adjustments, before, allowed)
        if ends:
            row_of, end = self._upload(np.array(ends).T)
            logits[row_of, end] += -math.inf  # not `=`, which would hide a NaN
        tokens = self._draw(logits, self._upload(settings))
        if adjustments is not None and before is None:
            self._count_drawn(adjustments, tokens)
        return tokens

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
        scores = logits.log_softmax(dim=-1)
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
            adjusts=counts != _NONE or biases != _NONE,
            adjustment=(counts, biases, *penalties.view(np.int32).tolist()),
            ends=sorted(request.ends),
            first_end=request.prompt_tokens + p.min_new_tokens,
        )
        return self._states[request]

    def _adjust(self, logits: Tensor, adjustments: Tensor, before: Tensor | None, allowed: Tensor | None) -> None:
        """Adjust rows in place; adjustments [rows, 6] are the row, and `_State.adjustment`."""
        for part in adjustments.split(max(_CHUNK // self.vocab, 1)):
            rows, counts_row, biases_row = part[:, :3].long().unbind(1)
            x = logits[rows]
            if len(self._counts.rows):
                # Without penalties the operations below change nothing, whatever the counts are.
                counts = self._counts.rows[counts_row.clamp(min=0)]
                if before is not None:
                    proposed = before[rows]
                    counts.scatter_add_(1, proposed.clamp(min=0), (proposed >= 0).int())
                x = _penalise(x, counts, *part[:, 3:, None].view(torch.float32).unbind(1))
            if len(self._biases.rows):
                bias = self._biases.rows[biases_row.clamp(min=0)]
                x = torch.where(biases_row[:, None] >= 0, x + bias, x)
            if allowed is not None:
                bits = torch.arange(32, dtype=torch.int32, device=self.device)
                forbidden = (allowed[rows][:, :, None] >> bits & 1).flatten(1)[:, : self.vocab] == 0
                x = torch.where(forbidden, x - math.inf, x)
            logits[rows] = x

    def _count_drawn(self, adjustments: Tensor, tokens: Tensor) -> None:
        if len(self._counts.rows):
            rows, counts_row = adjustments[:, :2].long().unbind(1)
            drawn = tokens[rows]
            counted = (counts_row >= 0) & (drawn >= 0)
            places = counts_row.clamp(min=0) * self.vocab + drawn.clamp(min=0)
            self._counts.rows.view(-1).index_add_(0, places, counted.int())

    def _add(self, counts: Tensor, tokens: Tensor) -> None:
        counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))

    def _upload(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def _settings(request: Request, vocab: int) -> bytes:
    """The words of `sampling` as bytes; the position is 0."""
    p = request.params
    words = np.zeros(6, np.int32)
    numbers = words.view(np.float32)
    words.view(np.uint32)[sampling.KEY] = key(request.seed, request.sample)
    words[sampling.TOP_K] = min(p.top_k or vocab, vocab)
    numbers[sampling.INVERSE_TEMPERATURE] = 1 / max(p.temperature, _MIN_TEMPERATURE) if p.temperature else 0
    numbers[sampling.TOP_P] = p.top_p
    numbers[sampling.LOG_MIN_P] = math.log(p.min_p) if p.min_p else -math.inf
    return words.tobytes()


def _penalise(x: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """Logits [rows, vocab] after penalties [rows, 1] of tokens that occurred in the prompt or in the answer."""
    x = torch.where(counts > 0, torch.where(x > 0, x / repetition, x * repetition), x)
    answer = counts.bitwise_and_(_IN_PROMPT - 1).float()
    return x - torch.where(answer > 0, answer * frequency + presence, 0.0)
