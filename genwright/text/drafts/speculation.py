"""Speculative decoding: a draft proposes tokens, and one step of the model verifies them all.

The sampler draws a token at every proposed position with the noise of that position. Proposals are accepted up to the
first that differs from the token drawn there, which takes its place; if all are accepted, one token more was drawn. So
a draft never changes the text: a seed gives the same tokens with any draft, with any number of proposals, and without
one (drafter-invariant speculation: Daliri et al., 2024). A draft model draws its proposals with the same noise, so
that they often agree even at a high temperature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from genwright.kernels.cpu.fused_linear import kernel
from genwright.text.engine.executor import Verified
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.loader import Model
from genwright.text.ops.step import Chunk

# Constants and counted bytes instead of measurements, because results must not depend on the clock.
ROW_COST = 0.02  # on a GPU
# Llama-2-7B on an H200 takes 4.1 ms for two to eight rows and 3.3 ms for one; the rest is the time of launches.
VERIFY_COST = 0.5
ROW_COST_ON_CPU = 0.1  # SmolLM2 on two cores: six rows take 1.5 times as long as one; packed 1.7 to 1.9 times
ROW_COST_OF_TORCH = 0.2  # on a CPU without our kernel

Reserve = Callable[[Request, int], int]  # allocates pages for further tokens of a request; returns for how many
# The places of each request's proposed tokens in a tensor, int64 [n] on the device; requests without any are left out.
Proposals = tuple[dict[Request, list[int]], Tensor | None]


class Draft(Protocol):
    """Proposes tokens."""

    cost: float  # of a proposed token, relative to a step of the model
    sees_all: bool = False  # whether `observe` must be called for each step before the next one is launched

    def propose(self, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> Proposals:
        """Propose at most `count` tokens for each (request, count), without waiting for the device."""

    def observe(self, requests: Sequence[Request], chunks: Sequence[Chunk]) -> None:
        """Called after each step of the model, when these chunks are computed and their next tokens are known."""
        return

    def propose_ahead(self, wanted: Sequence[tuple[Request, int]], verified: Verified, sampler: Sampler) -> None:
        """Start the next proposals while the model verifies the current ones, if that does not need the host."""
        return

    def ready(self, request: Request) -> int:
        """How many tokens it has already proposed after the request's own."""
        return 0

    def verified(self, request: Request, proposed: Sequence[int], accepted: int) -> None:
        """Called when the host has read what was proposed for a request, and before it adds the new tokens."""
        return


class ProposalLength:
    """How many tokens to propose for one request, from how many of its proposals were accepted."""

    MEMORY = 0.9  # decay of the counts at each proposal
    PAUSE = 16  # most steps between two trials while proposing does not pay; fewer where a trial is cheap
    SHARE = 0.01  # of the time spent on trials
    PATIENCE = 16  # the pause grows up to this factor while all trials fail
    WAIT = 4  # most steps in flight before a draft that had nothing to propose is asked again

    def __init__(self) -> None:
        self.accepted, self.rejected = 3.2, 0.8  # counts; the initial values are a prior
        self.skipped, self.failed = 0, 0  # steps without a proposal since the last one, and trials in a row that failed
        self.unanswered, self.waited = 0, 0  # times in a row that the draft had nothing, and steps since the last time

    def best(self, most: int, cost: Callable[[int], float]) -> int:
        """The k with the most tokens per cost, (1 - a^(k+1)) / (1 - a) / (1 + cost(k)) (Leviathan et al., 2023)."""
        a = self.accepted / (self.accepted + self.rejected)
        best, most_gained, tokens = 0, 1.0, 1.0
        for k in range(1, most + 1):
            tokens += a**k
            if (gained := tokens / (1 + cost(k))) > most_gained:
                best, most_gained = k, gained
        pause = min((cost(2) - cost(1)) / self.SHARE, self.PAUSE) * min(2**self.failed, self.PATIENCE)
        return best or min(most, int(self.skipped >= pause))

    def has_waited(self) -> bool:
        """Whether it is time to read the step in flight, so that the draft can be asked."""
        return self.waited >= min(self.unanswered, self.WAIT)

    def answer(self, found: bool) -> None:
        """Take note of whether the draft had something to propose."""
        self.unanswered, self.waited = 0 if found else self.unanswered + 1, 0

    def learn(self, proposed: int, accepted: int) -> None:
        """Take note of how many proposed tokens were accepted."""
        self.accepted = self.accepted * self.MEMORY + accepted
        self.rejected = self.rejected * self.MEMORY + (accepted < proposed)
        self.failed = 0 if accepted else self.failed + bool(self.skipped)
        self.skipped = 0


@dataclass(frozen=True)
class StepCost:
    """The time of a step by its rows, relative to one row, for which it mostly reads weights."""

    row: float  # of each further row
    several: float = 0.0  # of having more than one
    second_row: float = 0.0  # of reading the experts that the second row chooses and the first does not
    unchosen: float = 0.0  # the probability that a row does not choose an expert

    @staticmethod
    def of(model: Model) -> "StepCost":
        """A further row of a mixture reads experts of its own, fewer the more rows there are."""
        moe, gpu = model.cfg.moe, model.device.type != "cpu"
        row = ROW_COST if gpu else ROW_COST_OF_TORCH if kernel() is None else ROW_COST_ON_CPU
        unchosen = 0.0 if moe is None else 1 - moe.top_k / moe.experts
        second_row = model.bytes_read(2) / model.bytes_read(1) - 1
        return StepCost(row, VERIFY_COST if gpu else 0.0, second_row, unchosen)

    def of_proposals(self, count: int, batch: int) -> float:
        """Of `count` proposed tokens for each sequence of a batch, relative to the step without them."""
        without = self._rows(batch)
        verify = self.several if batch == 1 else 0.0  # a batch has several rows anyway
        return verify + (self._rows(batch * (1 + count)) - without) / without

    def _rows(self, rows: int) -> float:
        experts = (1 - self.unchosen ** (rows - 1)) / (1 - self.unchosen)
        return 1 + self.row * (rows - 1) + self.second_row * experts


class Speculation:
    """Asks a draft for proposals, and adapts their length to each request."""

    def __init__(self, draft: Draft, k: int, step_cost: StepCost):
        self.draft, self.k, self.step_cost = draft, k, step_cost
        self._lengths: WeakKeyDictionary[Request, ProposalLength] = WeakKeyDictionary()

    def is_due(self, running: Sequence[Request]) -> bool:
        """Whether a request should get proposals, for which the host must have read its last token."""
        decoding = [request for request in running if request.pending <= 1]
        return any(self._wanted(each, len(decoding)) and self._length(each).has_waited() for each in decoding)

    def propose(self, decoding: Sequence[Request], budget: int, reserve: Reserve, sampler: Sampler) -> Proposals:
        """Proposals for decoding requests, at most `budget` tokens in all.

        There are none while the host has not read the last token of one of them, because a step takes the tokens that
        only the device knows either from the step before it or from the draft.
        """
        unread = any(request.unread for request in decoding)
        wanted = []
        for request in decoding:
            most = max(self._wanted(request, len(decoding)), self.draft.ready(request))  # what is ready costs no more
            length = self._length(request)
            length.skipped += not most
            length.waited += 1
            if most and not unread and (count := reserve(request, min(most, budget))) > 0:
                wanted.append((request, count))
                budget -= count
        if not wanted:
            return {}, None
        places, tokens = self.draft.propose(wanted, sampler)
        for request, _ in wanted:
            self._length(request).answer(request in places)
        return places, tokens

    def propose_ahead(self, requests: Sequence[Request], verified: Verified | None, sampler: Sampler) -> None:
        """Let the draft propose further tokens while the model verifies its last ones."""
        if verified is None:
            return
        most = [self._wanted(r, len(requests), 1 + int(row[2])) for r, row in zip(requests, verified.rows, strict=True)]
        self.draft.propose_ahead(list(zip(requests, most, strict=True)), verified, sampler)

    def learn(self, request: Request, proposed: Sequence[int], accepted: int) -> None:
        """Take note of which of a request's proposed tokens were accepted."""
        self._length(request).learn(len(proposed), accepted)
        request.acceptance.count(len(proposed), accepted)
        self.draft.verified(request, proposed, accepted)

    def _length(self, request: Request) -> ProposalLength:
        return self._lengths.setdefault(request, ProposalLength())

    def _wanted(self, request: Request, batch: int, further: int = 0) -> int:
        """How many tokens to propose, after `further` new ones."""
        if request.params.logits_processor is not None:  # its tokens are drawn on the host, one by one
            return 0
        most = min(self.k, request.limit - request.expected - further - 1)
        if most <= 0:
            return 0
        return self._length(request).best(
            most, lambda count: count * self.draft.cost + self.step_cost.of_proposals(count, max(batch, 1))
        )
