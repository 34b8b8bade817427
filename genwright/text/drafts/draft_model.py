"""DraftModel: a smaller model with the same vocabulary proposes tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

import torch
from torch import Tensor

from genwright.text.cache.pages import SequencePages
from genwright.text.cache.tiered import new_pages
from genwright.text.drafts.speculation import Draft, Proposals
from genwright.text.engine.executor import StepExecutor, Verified
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.loader import Model
from genwright.text.ops.step import Chunk, unread

CATCH_UP = 2  # tokens that a draft usually has not read: the last one proposed, if all were accepted, and one more


@dataclass
class Ahead:
    """Proposals that were launched before the host had read the tokens that they follow."""

    places: dict[Request, list[int]]
    tokens: Tensor
    known: dict[Request, int] = field(default_factory=dict)  # the tokens that each request has before them

    def ready(self, request: Request) -> int:
        """How many of them follow the tokens that the request has now."""
        return len(self.places.get(request, ())) if self.known.get(request) == len(request.tokens) else 0


class DraftModel(Draft):
    """Runs the draft model on all requests together; it has a cache of its own."""

    def __init__(self, executor: StepExecutor, model: Model, max_tokens: int, max_context: int):
        self.executor, self.max_tokens, self.max_context = executor, max_tokens, max_context
        self.cost = executor.model.step_bytes / model.step_bytes
        self.pool = new_pages(executor.cache, max_tokens)
        self._pages: dict[Request, SequencePages] = {}
        self._fed: dict[Request, list[int]] = {}  # proposed tokens whose cache rows are after a sequence's length
        self._broken: WeakSet[Request] = WeakSet()  # whose logits were NaN
        self._ahead: Ahead | None = None

    def propose(self, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> Proposals:
        for gone in [request for request in self._pages if request.pages is None]:
            self.pool.finish(self._pages.pop(gone), gone.tokens)
            self._fed.pop(gone, None)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and all(ahead.ready(request) for request, _ in wanted):
            for request, _ in wanted:
                self._fed.pop(request, None)
                self._advance(request, len(request.tokens))
            return {request: ahead.places[request][:count] for request, count in wanted}, ahead.tokens
        most = {request: count for request, count in wanted if self._make_room(request, count)}
        if not most:
            return {}, None
        return self._decode(most, sampler) or self._decode_by_steps(most, sampler)

    def _decode(self, most: dict[Request, int], sampler: Sampler) -> Proposals | None:
        """Draw at most these numbers of tokens without the host; None if that is not possible."""
        settings = sampler.settings(list(most), [len(request.tokens) for request in most])
        unread = max(len(request.tokens) - self._pages[request].length for request in most)
        if settings is None or unread > CATCH_UP or min(len(request.tokens) for request in most) < unread:
            return None
        counts = [self._fitting(request, count) for request, count in most.items()]
        # All chunks have the same number of tokens; computing one again does no harm.
        chunks = [self._chunk(request, len(request.tokens) - unread, unread) for request in most]
        tokens = self.executor.decode(chunks, settings, counts)
        if tokens is None:
            return None
        for request in most:
            self._advance(request, len(request.tokens))
        return _places(list(most), counts, tokens), tokens.view(-1)

    def _decode_by_steps(self, most: dict[Request, int], sampler: Sampler) -> Proposals:
        requests, logits = self._read(list(most))
        if logits is None:
            return {}, None
        counts = {request: self._fitting(request, most[request]) for request in requests}
        return draft_tokens(counts, logits, sampler, self._feed)

    def propose_ahead(self, wanted: Sequence[tuple[Request, int]], verified: Verified, sampler: Sampler) -> None:
        requests, counts = [request for request, _ in wanted], [count for _, count in wanted]
        settings = sampler.settings(requests, [len(request.tokens) + 1 for request in requests])
        if settings is None or not all(
            count and self._has_room(request, row[2] + count)
            for (request, count), row in zip(wanted, verified.rows, strict=True)
        ):
            return
        chunks = [
            Chunk([request.tokens[-1], 0], len(request.tokens) - 1, self._pages[request].tables())
            for request in requests
        ]
        tokens = self.executor.decode(chunks, settings, counts, verified)
        if tokens is not None:
            self._ahead = Ahead(_places(requests, counts, tokens), tokens.view(-1))

    def ready(self, request: Request) -> int:
        return 0 if self._ahead is None else self._ahead.ready(request)

    def _has_room(self, request: Request, further: int) -> bool:
        """Whether there are pages for further tokens of a request; allocates them."""
        length = len(request.tokens) + further
        if request not in self._pages or length >= self.max_context:
            return False
        return self.pool.reserve(self._pages[request], length) == length

    def verified(self, request: Request, proposed: Sequence[int], accepted: int) -> None:
        if self._ahead is not None:
            self._ahead.known[request] = len(request.tokens) + accepted + 1
        pages = self._pages.get(request)
        if pages is not None and -1 in proposed:
            self._ahead = None
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

    def _read(self, requests: Sequence[Request]) -> tuple[list[Request], Tensor | None]:
        """Compute tokens that are not in the cache; returns the requests for which pages sufficed, and their logits."""
        reading, read, logits = list(requests), list[Request](), list[Tensor]()
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
            starts = [self._pages[request].length for request, _ in work]
            rows = self.executor.run(
                [self._chunk(r, start, count) for (r, count), start in zip(work, starts, strict=True)]
            )
            for (request, count), start in zip(work, starts, strict=True):
                self._advance(request, start + count)
            ended = [self._pages[request].length == len(request.tokens) for request, _ in work]
            read += [request for (request, _), end in zip(work, ended, strict=True) if end]
            reading = [request for request in reading if request not in read]
            if not reading:
                logits.append(rows)
            elif any(ended):
                logits.append(torch.stack([row for row, end in zip(rows, ended, strict=True) if end]))
        return read, torch.cat(logits) if len(logits) > 1 else logits[0] if logits else None

    def _chunk(self, request: Request, start: int, count: int) -> Chunk:
        return Chunk(request.tokens[start : start + count], start, self._pages[request].tables())

    def _advance(self, request: Request, length: int) -> None:
        """The first `length` tokens of a request are in the cache."""
        self._pages[request].length = length
        self.pool.share(self._pages[request], request.tokens)

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


def draft_tokens(counts: dict[Request, int], logits: Tensor, sampler: Sampler, feed: Feed) -> Proposals:
    """Draw `counts` tokens of each request, the first from its row of the logits; all on the device, step by step."""
    requests = sorted(counts, key=counts.__getitem__, reverse=True)
    most, row_of = counts[requests[0]], {request: row for row, request in enumerate(counts)}
    logits = torch.stack([logits[row_of[request]] for request in requests])
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


def _places(requests: Sequence[Request], counts: Sequence[int], tokens: Tensor) -> dict[Request, list[int]]:
    """Where each request's tokens are in `tokens` [requests, most], as one row after the other."""
    firsts = range(0, tokens.numel(), tokens.shape[1])
    return {r: list(range(first, first + n)) for r, first, n in zip(requests, firsts, counts, strict=True)}
