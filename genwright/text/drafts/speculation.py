"""Speculative decoding: a draft proposes tokens, and one step of the model verifies them all.

The sampler draws a token at every proposed position with the noise of that position. Proposals are accepted up to the
first that differs from the token drawn there, which takes its place; if all are accepted, one token more was drawn. So
a draft never changes the text: a seed gives the same tokens with any draft, with any number of proposals, and without
one (drafter-invariant speculation: Daliri et al., 2024). A draft model draws its proposals with the same noise, so
that they often agree even at a high temperature.
"""

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from genwright.text.drafts.proposal_length import ProposalLength, StepCost
from genwright.text.engine.executor import Verified
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.ops.step import Chunk

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


class Speculation:
    """Asks a draft for proposals, and adapts their length to each request."""

    def __init__(self, draft: Draft, k: int, step_cost: StepCost):
        self.draft, self.k, self.step_cost = draft, k, step_cost
        self._lengths: WeakKeyDictionary[Request, ProposalLength] = WeakKeyDictionary()
        self._costs: dict[tuple[int, int], list[float]] = {}  # by the number of sequences, and k

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
        return self._length(request).best(most, self._costs_in(max(batch, 1)))

    def _costs_in(self, batch: int) -> list[float]:
        """Of 0, 1, 2 ... proposed tokens for each sequence, relative to a step without them."""
        if (batch, self.k) not in self._costs:
            counts = range(max(self.k, 2) + 1)
            costs = [count * self.draft.cost + self.step_cost.of_proposals(count, batch) for count in counts]
            self._costs[batch, self.k] = costs
        return self._costs[batch, self.k]
