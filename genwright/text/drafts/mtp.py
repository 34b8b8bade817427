"""MtpDraft: the checkpoint's multi-token-prediction layer proposes tokens (DeepSeek-V3, section 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from genwright.text.drafts.draft_model import draft_tokens
from genwright.text.drafts.speculation import Draft, Proposals
from genwright.text.engine.executor import PredictingExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.ops.step import Chunk, unread

MTP = "mtp"


@dataclass(frozen=True)
class Prediction:
    """The layer's outputs after a request's last token."""

    known: int  # the request's number of tokens at that time
    logits: Tensor  # [vocab], of the next token
    hidden: Tensor  # [dim]


class MtpDraft(Draft):
    """Proposes tokens from the hidden states of each step; for k > 1 the layer's own hidden state is fed back.

    The layer's cache row i combines the model's hidden state at token i with token i + 1. It is in the same page as the
    model's rows of token i, so a shared prefix includes the layer's rows. The last row of a prefix may belong to
    another continuation, because it depends on the next token; then a proposal may be rejected, but the text is the
    same.
    """

    sees_all = True

    def __init__(self, executor: PredictingExecutor):
        assert executor.mtp is not None
        self.executor = executor
        self.cost = replace(executor.model, blocks=[dict(executor.mtp)]).step_bytes / executor.model.step_bytes
        self._predictions: WeakKeyDictionary[Request, Prediction] = WeakKeyDictionary()

    def observe(self, requests: Sequence[Request], chunks: Sequence[Chunk]) -> None:
        assert self.executor.hidden is not None
        fed: list[tuple[Request, Chunk]] = []
        rows: list[int] = []  # of the hidden states
        first = 0
        for request, chunk in zip(requests, chunks, strict=True):
            assert request.pages is not None
            # Rejected tokens are after the length; a finished request has no token after its last one.
            stop = min(request.pages.length, len(request.tokens) - 1)
            if stop > chunk.start and request.finish_reason != "error":
                fed.append(
                    (request, Chunk(request.tokens[chunk.start + 1 : stop + 1], chunk.start, request.pages.tables()))
                )
                rows += range(first, first + stop - chunk.start)
            first += len(chunk.tokens)
        if not fed:
            return
        logits, hidden = self.executor.predict([chunk for _, chunk in fed], self.executor.hidden[rows])
        for row, (request, _) in enumerate(fed):
            assert request.pages is not None
            if request.pending == 1:
                self._predictions[request] = Prediction(len(request.tokens), logits[row], hidden[row])

    def propose(self, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> Proposals:
        known = {request: self._predictions[request] for request, _ in wanted if request in self._predictions}
        counts = {r: count for r, count in wanted if r in known and known[r].known == len(r.tokens)}
        if not counts:
            return {}, None
        hidden = {request: known[request].hidden for request in counts}

        def feed(requests: Sequence[Request], places: Sequence[int], offset: int, tokens: Tensor) -> Tensor:
            chunks = []
            for request, place in zip(requests, places, strict=True):
                assert request.pages is not None
                chunks.append(Chunk([unread(place)], len(request.tokens) + offset - 1, request.pages.tables()))
            states = torch.stack([hidden[request] for request in requests])
            logits, new = self.executor.predict(chunks, states, tokens)
            hidden.update(zip(requests, new, strict=True))
            return logits

        return draft_tokens(counts, torch.stack([known[request].logits for request in counts]), sampler, feed)
