"""Speculation: a draft guesses the next tokens, one step of the model checks them all, and the text stays the model's.

The rule is that of Leviathan et al. and of Chen et al. (2023): a token x that the draft drew from q stands with
probability min(1, p(x) / q(x)); the first that falls is drawn anew from max(p - q, 0), and where none falls the model
adds one of its own. A guess that was not drawn (prompt lookup's, or any at temperature 0) has q(x) = 1, and there
drawing from p and comparing is the same rule: it gives the very tokens that the seed gives without a draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from genwright.kernels.cpu.fused_linear import kernel
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Filters, Purpose, adjust, chance, distribution, draw, sample
from genwright.text.ops.step import Chunk

# What each further row of a step costs, in steps of one row, where reading the weights is most of a step. Fixed, not
# timed on the way: what is guessed should not depend on the clock.
ROW_COST = 0.02
ROW_COST_ON_CPU = 0.1  # SmolLM2 on two cores: six rows take 1.5 times as long as one; packed 1.7 to 1.9 times
ROW_COST_OF_TORCH = 0.2  # there without our kernel


@dataclass(frozen=True)
class Guess:
    """Tokens that may come next, and the distributions q [tokens, vocab] that they were drawn from, if they were."""

    tokens: list[int]
    q: torch.Tensor | None = None


NO_GUESS = Guess([])


class Draft(Protocol):
    """Whatever can guess tokens: exactness does not depend on how."""

    cost: float  # of a guessed token, in steps of the model

    def guess(self, wanted: Sequence[tuple[Request, int]]) -> list[Guess]:
        """Up to so many tokens for each request."""
        ...

    def observe(self, requests: Sequence[Request], chunks: Sequence[Chunk]) -> None:
        """A step of the model is done: these requests' chunks are computed, and their next tokens are known."""
        return


class Pace:
    """How far ahead to guess for one request, learnt from how its guesses fared."""

    MEMORY = 0.9  # of what was learnt, kept at each guess
    PAUSE = 16  # steps at the most from one try to the next while guessing does not pay: fewer where a try costs little
    SHARE = 0.01  # of the time, for such tries
    PATIENCE = 16  # times as long a pause at the most, while all tries fail

    def __init__(self) -> None:
        self.stood, self.fell = 0.8, 0.2  # tokens; these are what is believed beforehand
        self.idle, self.failed = 0, 0

    def length(self, most: int, cost: float) -> int:
        """The k with the most tokens per unit of work, (1 - a^(k+1)) / (1 - a) / (1 + k c) (Leviathan et al.)."""
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
    """Asks a draft for guesses, as far ahead as has paid for each request."""

    def __init__(self, draft: Draft, k: int, row_cost: float):
        self.draft, self.k, self.row_cost = draft, k, row_cost
        self._paces: WeakKeyDictionary[Request, Pace] = WeakKeyDictionary()

    def guess(
        self, requests: Sequence[Request], budget: int, reserve: Callable[[Request, int], int]
    ) -> dict[Request, Guess]:
        """Guesses for requests that lack one token, `budget` tokens in all; `reserve` tells how many have room."""
        # Sequences share the reading of the weights, so the more there are, the more a further row weighs.
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


def verify(logits: torch.Tensor, requests: Sequence[Request], guesses: Sequence[Guess]) -> list[list[int | None]]:
    """What each request gains: the guesses that stand and one token more; None where a row is not numbers.

    Of logits [rows, vocab], each request has 1 + len(guess) rows.
    """
    views: list[Request] = []
    tested: list[int] = []  # rows whose guess was drawn
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


def _accept(
    logits: torch.Tensor, requests: Sequence[Request], tokens: Sequence[int], q: torch.Tensor
) -> list[int | None]:
    """For each row of logits and q [rows, vocab] the drawn token where it stands, else one from max(p - q, 0).

    The second is never the first: where x falls, p(x) < q(x).
    """
    broken = logits.isnan().any(dim=-1)
    p, ids = distribution(adjust(logits, requests), Filters.of(requests, logits.shape[1], logits.device))
    x = torch.tensor(tokens, device=ids.device)[:, None]
    p_x, q_x = p.masked_fill(ids != x, 0).sum(dim=-1), q.gather(1, x)[:, 0]
    stands = chance(requests, Purpose.ACCEPT, ids.device) * q_x < p_x
    rest = (p - q.gather(1, ids)).clamp_(min=0)
    rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)  # rounding may leave nothing of equal p and q
    chosen = torch.where(stands, x[:, 0], draw(rest, ids, requests, Purpose.RESIDUAL))
    return [None if bad else token for token, bad in zip(chosen.tolist(), broken.tolist(), strict=True)]
