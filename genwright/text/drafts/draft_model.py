"""DraftModel: a smaller model with the same vocabulary proposes tokens."""

from collections.abc import Callable, Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from genwright.text.cache.pages import PagePool, SequencePages
from genwright.text.drafts.speculation import NO_GUESS, Draft, Guess
from genwright.text.engine.executor import StepExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Purpose, choose
from genwright.text.loader import Model
from genwright.text.ops.step import Chunk


class DraftModel(Draft):
    """Runs the draft model on all requests together; it has a cache of its own."""

    def __init__(self, executor: StepExecutor, model: Model, max_tokens: int, max_context: int):
        self.executor, self.max_tokens, self.max_context = executor, max_tokens, max_context
        self.cost = executor.model.step_bytes / model.step_bytes
        self.pool = PagePool(executor.cache, max_tokens)
        self._pages: dict[Request, SequencePages] = {}
        self._fed: dict[Request, list[int]] = {}  # proposed tokens whose cache rows are after a sequence's length
        self._broken: WeakSet[Request] = WeakSet()  # whose logits were NaN

    def guess(self, wanted: Sequence[tuple[Request, int]]) -> list[Guess]:
        for gone in [request for request in self._pages if request.pages is None]:
            self.pool.finish(self._pages.pop(gone), gone.tokens)
            self._fed.pop(gone, None)
        logits = self._read([request for request, count in wanted if self._make_room(request, count)])
        going = {request: self._guesses(request, count) for request, count in wanted if request in logits}
        if not going:
            return [NO_GUESS] * len(wanted)
        guesses, broken = guess_on(going, torch.stack([logits[request] for request in going]), self._feed)
        for request in broken:
            self.pool.discard(self._pages.pop(request))
            self._broken.add(request)
        self._fed |= {request: guess.tokens[:-1] for request, guess in guesses.items() if request in self._pages}
        return [guesses.get(request, NO_GUESS) for request, _ in wanted]

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

    def _guesses(self, request: Request, count: int) -> int:
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
            logits = self.executor.run([self._chunk(request, count) for request, count in work])
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

    def _feed(self, guessed: dict[Request, list[int]]) -> Tensor:
        return self.executor.run(
            [
                Chunk(tokens[-1:], len(request.tokens) + len(tokens) - 1, self._pages[request].tables())
                for request, tokens in guessed.items()
            ]
        )


def guess_on(
    wanted: dict[Request, int], logits: Tensor, feed: Callable[[dict[Request, list[int]]], Tensor]
) -> tuple[dict[Request, Guess], list[Request]]:
    """Propose tokens from logits [requests, vocab], and further ones from what `feed` returns for those so far.

    The second result is the requests whose logits were NaN.
    """
    tokens: dict[Request, list[int]] = {request: [] for request in wanted}
    q: dict[Request, list[Tensor]] = {request: [] for request in wanted}
    going, broken = list(wanted), list[Request]()
    while True:
        picked, drawn = choose(logits, [request.ahead(tokens[request]) for request in going], Purpose.DRAFT)
        rest = []
        for row, (request, token) in enumerate(zip(going, picked, strict=True)):
            if token is None:
                broken.append(request)
                continue
            tokens[request].append(token)
            if row in drawn:
                q[request].append(drawn[row])
            if token not in request.ends and len(tokens[request]) < wanted[request]:
                rest.append(request)
        if not rest:
            break
        going = rest
        logits = feed({request: tokens[request] for request in going})
    return {r: Guess(tokens[r], torch.stack(q[r]) if q[r] else None) for r in wanted}, broken
