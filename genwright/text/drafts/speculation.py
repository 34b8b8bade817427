"""Speculative decoding: a draft proposes tokens, and one step of the model verifies them all.

The rule is that of Leviathan et al. and of Chen et al. (2023), which keeps the model's distribution: a token x that the
draft sampled from q is accepted with probability min(1, p(x) / q(x)). The first rejected token is replaced by one
sampled from max(p - q, 0); if all are accepted, the model adds one token. A proposal that was not sampled (prompt
lookup, or temperature 0) has q(x) = 1. Sampling from p and comparing is then the same rule, and it gives exactly the
tokens that the seed gives without a draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from genwright.kernels.cpu.fused_linear import kernel
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Filters, Purpose, adjust, chance, distribution, draw, sample
from genwright.text.ops.step import Chunk

# The cost of each further row of a step, relative to a step of one row, whose time is mostly spent reading the weights.
# Constants instead of measurements, because proposals must not depend on the clock.
ROW_COST = 0.02
ROW_COST_ON_CPU = 0.1  # SmolLM2 on two cores: six rows take 1.5 times as long as one; packed 1.7 to 1.9 times
ROW_COST_OF_TORCH = 0.2  # on a CPU without our kernel


@dataclass(frozen=True)
class Guess:
    """Proposed tokens, and the distributions q [tokens, vocab] that they were sampled from; None if they were not."""

    tokens: list[int]
    q: Tensor | None = None


NO_GUESS = Guess([])


class Draft(Protocol):
    """Proposes tokens. The text's distribution does not depend on how."""

    cost: float  # of a proposed token, relative to a step of the model

    def guess(self, wanted: Sequence[tuple[Request, int]]) -> list[Guess]:
        """Propose at most `count` tokens for each (request, count)."""

    def observe(self, requests: Sequence[Request], chunks: Sequence[Chunk]) -> None:
        """Called after each step of the model, when these chunks are computed and their next tokens are known."""
        return


class Pace:
    """How many tokens to propose for one request, from how many of its proposals were accepted."""

    MEMORY = 0.9  # decay of the counts at each proposal
    PAUSE = 16  # most steps between two trials while proposing does not pay; fewer where a trial is cheap
    SHARE = 0.01  # of the time spent on trials
    PATIENCE = 16  # the pause grows up to this factor while all trials fail

    def __init__(self) -> None:
        self.stood, self.fell = 0.8, 0.2  # accepted tokens and rejections; the initial values are a prior
        self.idle, self.failed = 0, 0

    def length(self, most: int, cost: float) -> int:
        """The k with the most tokens per cost, (1 - a^(k+1)) / (1 - a) / (1 + k c) (Leviathan et al.)."""
        a = self.stood / (self.stood + self.fell)
        best = max(range(most + 1), key=lambda k: sum(a**i for i in range(k + 1)) / (1 + k * cost))
        if not best:
            self.idle += 1
        pause = min(cost / self.SHARE, self.PAUSE) * min(2**self.failed, self.PATIENCE)
        return 1 if self.idle > pause else best

    def learn(self, guessed: int, stood: int) -> None:
        self.stood = self.stood * self.MEMORY + stood
        self.fell = self.fell * self.MEMORY + (stood < guessed)
        self.failed = 0 if stood else self.failed + bool(self.idle)
        self.idle = 0


def row_cost(device: torch.device) -> float:
    if device.type != "cpu":
        return ROW_COST
    return ROW_COST_OF_TORCH if kernel() is None else ROW_COST_ON_CPU


class Speculation:
    """Asks a draft for proposals, and adapts their length to each request."""

    def __init__(self, draft: Draft, k: int, row_cost: float):
        self.draft, self.k, self.row_cost = draft, k, row_cost
        self._paces: WeakKeyDictionary[Request, Pace] = WeakKeyDictionary()

    def guess(
        self, requests: Sequence[Request], budget: int, reserve: Callable[[Request, int], int]
    ) -> dict[Request, Guess]:
        """Proposals for decoding requests, at most `budget` tokens in all; `reserve` returns how many have pages."""
        # Sequences share the reading of the weights, so a further row costs relatively more in a larger batch.
        cost = self.draft.cost + self.row_cost / ((1 - self.row_cost) / max(len(requests), 1) + self.row_cost)
        wanted = []
        for request in requests:
            most = min(self.k, budget, request.limit - len(request.tokens) - 1)
            if most < 1:
                continue
            count = reserve(request, self._paces.setdefault(request, Pace()).length(most, cost))
            if count:
                wanted.append((request, count))
                budget -= count
        guesses = self.draft.guess(wanted) if wanted else []
        return {request: guess for (request, _), guess in zip(wanted, guesses, strict=True) if guess.tokens}

    def learn(self, request: Request, guessed: int, stood: int) -> None:
        self._paces[request].learn(guessed, stood)
        request.acceptance.count(guessed, stood)


def verify(logits: Tensor, requests: Sequence[Request], guesses: Sequence[Guess]) -> list[list[int | None]]:
    """The new tokens of each request: accepted proposals and one token more; None where logits are NaN.

    Each request has 1 + len(guess.tokens) rows of logits [rows, vocab].
    """
    views: list[Request] = []
    tested: list[int] = []  # rows whose proposal was sampled
    for request, guess in zip(requests, guesses, strict=True):
        if guess.q is not None:
            tested += range(len(views), len(views) + len(guess.tokens))
        views += [request.ahead(guess.tokens[:count]) for count in range(len(guess.tokens) + 1)]
    plain = sorted(set(range(len(views))) - set(tested))
    outcome: list[int | None] = [None] * len(views)
    for row, token in zip(plain, sample(logits[plain] if tested else logits, [views[i] for i in plain]), strict=True):
        outcome[row] = token
    if tested:
        drawn = [guess for guess in guesses if guess.q is not None]
        q = torch.cat([guess.q for guess in drawn if guess.q is not None])
        guessed = [token for guess in drawn for token in guess.tokens]
        for row, token in zip(tested, _accept(logits[tested], [views[i] for i in tested], guessed, q), strict=True):
            outcome[row] = token
    gains, row = [], 0
    for guess in guesses:
        gain: list[int | None] = []
        for token, guessed_token in zip(outcome[row:], [*guess.tokens, None], strict=False):
            gain.append(token)
            if token != guessed_token:
                break
        gains.append(gain)
        row += len(guess.tokens) + 1
    return gains


def _accept(logits: Tensor, requests: Sequence[Request], tokens: Sequence[int], q: Tensor) -> list[int | None]:
    """For each row of logits and q [rows, vocab] the proposed token if it is accepted, else one from max(p - q, 0).

    The second is never the proposed token, because x is only rejected where p(x) < q(x).
    """
    broken = logits.isnan().any(dim=-1)
    p, ids = distribution(adjust(logits, requests), Filters.of(requests, logits.shape[1], logits.device))
    x = torch.tensor(tokens, device=ids.device)[:, None]
    p_x, q_x = p.masked_fill(ids != x, 0).sum(dim=-1), q.gather(1, x)[:, 0]
    stands = chance(requests, Purpose.ACCEPT, ids.device) * q_x < p_x
    rest = (p - q.gather(1, ids)).clamp_(min=0)
    rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)  # all may be 0 if p and q are almost equal
    chosen = torch.where(stands, x[:, 0], draw(rest, ids, requests, Purpose.RESIDUAL))
    return [None if bad else token for token, bad in zip(chosen.tolist(), broken.tolist(), strict=True)]
