"""DraftModel: a smaller model with the same vocabulary proposes tokens."""

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from genwright.text.cache.pages import SequencePages
from genwright.text.cache.tiered import new_pages
from genwright.text.drafts.speculation import Draft, Proposals
from genwright.text.engine.executor import StepExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.loader import Model
from genwright.text.ops.step import Chunk, unread


class DraftModel(Draft):
    """Runs the draft model on all requests together; it has a cache of its own."""

    def __init__(self, executor: StepExecutor, model: Model, max_tokens: int, max_context: int):
        self.executor, self.max_tokens, self.max_context = executor, max_tokens, max_context
        self.cost = executor.model.step_bytes / model.step_bytes
        self.pool = new_pages(executor.cache, max_tokens)
        self._pages: dict[Request, SequencePages] = {}
        self._fed: dict[Request, list[int]] = {}  # proposed tokens whose cache rows are after a sequence's length
        self._broken: WeakSet[Request] = WeakSet()  # whose logits were NaN

    def propose(self, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> Proposals:
        for gone in [request for request in self._pages if request.pages is None]:
            self.pool.finish(self._pages.pop(gone), gone.tokens)
            self._fed.pop(gone, None)
        logits = self._read([request for request, count in wanted if self._make_room(request, count)])
        counts = {request: self._fitting(request, count) for request, count in wanted if request in logits}
        return draft_tokens(counts, logits, sampler, self._feed)

    def verified(self, request: Request, proposed: Sequence[int]) -> None:
        pages = self._pages.get(request)
        if pages is not None and -1 in proposed:
            self._broken.add(request)
            self.pool.discard(self._pages.pop(request))
        elif pages is not None:
            self._fed[request] = list(proposed[:-1])

    def _make_room(self, request: Request, count: int) -> bool:
        """Allocate pages for a request's tokens; False if there are none, or if proposals exceed the context."""
        known = len(request.tokens)
        if request in self._broken or known + count > self.max_context:
            return False
        pages = self._pages[request] if request in self._pages else self.pool.start(request.tokens)
        if pages is None:
            return False
        for token in self._fed.pop(request, []):
            if pages.length >= known or request.tokens[pages.length] != token:
                break
            pages.length += 1
        pages.length = min(pages.length, known - 1)  # the last token is computed again, for its logits
        if not self.pool.extend(pages, known):
            self._pages.pop(request, None)
            self.pool.release(pages)
            return False
        self._pages[request] = pages
        return True

    def _fitting(self, request: Request, count: int) -> int:
        """How many of `count` proposed tokens fit in pages; all but the last are fed back."""
        known = len(request.tokens)
        return 1 + self.pool.reserve(self._pages[request], known + count - 1) - known

    def _read(self, requests: Sequence[Request]) -> dict[Request, Tensor]:
        """Compute tokens that are not in the cache; returns the logits after the last one, if pages sufficed."""
        last: dict[Request, Tensor] = {}
        reading = list(requests)
        while reading:
            budget, work = self.max_tokens, list[tuple[Request, int]]()
            for request in reading:
                pages = self._pages[request]
                wanted = min(len(request.tokens), pages.length + budget)
                count = self.pool.reserve(pages, wanted) - pages.length
                if count:
                    work.append((request, count))
                    budget -= count
            if not work:
                self.pool.release(self._pages.pop(reading.pop()))
                continue
            work.sort(key=lambda item: item[1])
            logits = self.executor.run([self._chunk(request, count) for request, count in work]).clone()
            for row, (request, count) in zip(logits, work, strict=True):
                pages = self._pages[request]
                pages.length += count
                self.pool.share(pages, request.tokens)
                if pages.length == len(request.tokens):
                    last[request] = row
                    reading.remove(request)
        return last

    def _chunk(self, request: Request, count: int) -> Chunk:
        pages = self._pages[request]
        return Chunk(request.tokens[pages.length : pages.length + count], pages.length, pages.tables())

    def _feed(self, requests: Sequence[Request], places: Sequence[int], offset: int, tokens: Tensor) -> Tensor:
        return self.executor.run(
            [
                Chunk([unread(place)], len(request.tokens) + offset, self._pages[request].tables())
                for request, place in zip(requests, places, strict=True)
            ],
            tokens,
        )


# Computes token number `offset` after each request's own, at these places of the tensor, and returns the next logits.
Feed = Callable[[Sequence[Request], Sequence[int], int, Tensor], Tensor]


def draft_tokens(
    counts: dict[Request, int], first: Mapping[Request, Tensor], sampler: Sampler, feed: Feed
) -> Proposals:
    """Draw `counts` tokens of each request, the first of them from its logits [vocab]; all on the device."""
    if not counts:
        return {}, None
    requests = sorted(counts, key=counts.__getitem__, reverse=True)
    most = counts[requests[0]]
    logits = torch.stack([first[request] for request in requests])
    tokens = torch.zeros(len(requests), most, dtype=torch.int64, device=logits.device)
    for column in range(most):
        going = [request for request in requests if counts[request] > column]
        if column:
            places = range(column - 1, len(going) * most, most)
            logits = feed(going, places, column - 1, tokens.view(-1))
        positions = [len(request.tokens) + column for request in going]
        drawn = sampler.sample(logits[: len(going)], going, positions, tokens[: len(going), :column])
        tokens[: len(going), column] = drawn
    places_of = {request: [row * most + i for i in range(counts[request])] for row, request in enumerate(requests)}
    return places_of, tokens.view(-1)
