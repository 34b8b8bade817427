"""Scheduler: which sequences compute how many tokens in the next step."""

import time
from bisect import insort
from collections.abc import Callable

from genwright.kernels import PAGE
from genwright.text.cache.tiered import Pages, TieredPages
from genwright.text.engine.request import Request

# While sequences decode, a step computes one part in SPREAD of the prompt tokens that wait, so that a short queue does
# not hold up the next tokens of running streams, and a long one is computed at full speed. With 8, 32 requests at once
# took 10 % longer on a CPU, because the last ones start late.
SPREAD = 4


class Scheduler:
    """Decoding sequences get one token each, prompts get chunks of the rest: by priority, then in order of arrival.

    A prompt of more tokens than a step has takes half of a step's rest while others wait, so that short prompts pass.
    """

    def __init__(
        self,
        pool: Pages,
        max_batch: int,
        max_tokens: int,
        on_remove: Callable[[Request], None] = lambda request: None,  # also called when a request is pre-empted
    ):
        self._sparse = isinstance(pool, TieredPages) and pool.cache.sparse
        self.pool, self.max_batch, self.max_tokens, self.on_remove = pool, max_batch, max_tokens, on_remove
        self.waiting: list[Request] = []  # the next one first
        self.running: list[Request] = []  # the same order
        self.preemptions = self.prefix_queries = self.prefix_hits = 0  # the last two in tokens of admitted requests
        self._arrivals = 0
        self._full = False  # there is no memory for the next waiting request, and no running one has left since

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self._arrivals += 1
        request.order = self._arrivals
        insort(self.waiting, request, key=_order)

    def schedule(self) -> list[tuple[Request, int]]:
        """The requests of the next step and how many of their tokens to compute; decoding requests come first."""
        decoding, prompts = list[Request](), list[Request]()
        for request in list(self.running):
            if request.pages is None or request.expected >= request.limit:
                continue  # pre-empted for an older one, or its last token is in flight
            if (pending := request.pending) and self._make_room(request):
                (decoding if pending == 1 else prompts).append(request)
        # A request may have been pre-empted after it was chosen, to make room for an older one.
        decoding = [request for request in decoding if request.pages is not None][: self.max_tokens]
        prompts = [request for request in prompts if request.pages is not None]
        budget = self._prompt_budget(prompts, len(decoding))
        work = dict.fromkeys(decoding, 1)
        for place, request in enumerate(prompts):
            others = place + 1 < len(prompts) or self._may_admit()
            budget -= work.setdefault(request, self._share(request.pending, budget, others))
        budget = self._admit_waiting(work, budget)
        for request in list(work)[len(decoding) :] if budget else []:  # what others left, to prompts that took half
            more = min(request.pending - work[request], budget)
            work[request] += more
            budget -= more
        return [(request, count) for request, count in work.items() if count]

    def _prompt_budget(self, prompts: list[Request], decoding: int) -> int:
        """How many tokens of prompts the next step computes."""
        rest = self.max_tokens - decoding
        if not decoding:
            return rest
        queued = sum(request.pending for request in prompts)
        for request in self.waiting:
            if queued >= rest * SPREAD:
                break
            queued += len(request.tokens)
        return min(rest, -(-max(queued, self.max_tokens) // SPREAD))

    def _share(self, pending: int, budget: int, others: bool) -> int:
        return budget // 2 if others and pending > self.max_tokens and budget > 1 else min(pending, budget)

    def _admit_waiting(self, work: dict[Request, int], budget: int) -> int:
        """Add waiting requests to the step's work; returns what is left of the budget of tokens."""
        while budget and self._may_admit() and not self._is_being_computed(request := self.waiting[0]):
            if not self._admit(request):
                self.hold()
                break
            del self.waiting[0]
            insort(self.running, request, key=_order)
            work[request] = self._share(request.pending, budget, self._may_admit())
            budget -= work[request]
        return budget

    def _may_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self.max_batch and not (self._full and self.running)

    def remove(self, request: Request, keep: bool) -> None:
        """Remove a request; `keep` keeps its tokens in the prefix tree, otherwise its pages are zeroed."""
        self._full = False
        if request.pages is not None:
            if keep:
                self.pool.finish(request.pages, self.keys(request))
            else:
                self.pool.discard(request.pages)
            request.pages, request.in_flight, request.unread = None, 0, 0
            self.running.remove(request)
            self.on_remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def keys(self, request: Request) -> list[int]:
        """A request's tokens as keys of the prefix tree; sparse attention gives generated tokens keys of their own."""
        if not self._sparse:
            return request.tokens
        prompt = request.prompt_tokens
        return request.tokens[:prompt] + [~token for token in request.tokens[prompt:]]

    def _admit(self, request: Request) -> bool:
        """Allocate pages for the whole prompt, so that partly computed prompts cannot block each other."""
        fresh = request.params.prompt_logprobs and not request.output  # needs the logits of every token
        pages = self.pool.start(request.tokens[:1] if fresh else self.keys(request), len(request.tokens))
        if pages is None:
            return False
        request.admitted = request.admitted or time.perf_counter()
        self.prefix_queries += len(request.tokens)
        self.prefix_hits += pages.length
        request.cached_tokens = max(request.cached_tokens, min(pages.length, request.prompt_tokens))
        request.pages = pages
        if fresh:
            request.prompt_logprobs = [None]  # a pre-empted prompt starts again
        return True

    def _make_room(self, request: Request) -> bool:
        """Allocate pages for all its tokens, pre-empting the last in order; False if it was itself pre-empted."""
        pages = request.pages
        assert pages is not None
        while not self.pool.extend(pages, request.expected):
            # A sequence of another tier would leave no page of this one.
            last = next(each for each in reversed(self.running) if _tier(each) == _tier(request))
            self.preempt(last)
            if last is request:
                return False
        return True

    def reserve(self, request: Request, count: int) -> int:
        """Allocate pages for up to `count` more tokens without pre-empting; returns how many tokens fit."""
        assert request.pages is not None
        return self.pool.reserve(request.pages, request.expected + count) - request.expected

    def preempt(self, request: Request) -> None:
        """Move a running request back to the queue; its pages stay in the tree until they are evicted."""
        self.preemptions += 1
        self.remove(request, keep=True)
        insort(self.waiting, request, key=_order)

    def hold(self) -> None:
        """Admit no request until a running one leaves."""
        self._full = True

    def _is_being_computed(self, request: Request) -> bool:
        """Whether a running prompt will compute full pages that this request also starts with."""
        for other in self.running:
            if other.pages is None or other.pages.length >= other.prompt_tokens:
                continue
            for page in range(min(len(other.tokens), len(request.tokens) - 1) // PAGE):
                span = slice(page * PAGE, (page + 1) * PAGE)
                if other.tokens[span] != request.tokens[span]:
                    break
                if span.stop > other.pages.length:
                    return True
        return False


def _tier(request: Request) -> int | None:
    return None if request.pages is None else request.pages.first_page


def _order(request: Request) -> tuple[int, int]:
    return -request.params.priority, request.order
