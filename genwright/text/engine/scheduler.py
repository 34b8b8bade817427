"""Scheduler: which sequences compute how many tokens in the next step."""

from collections import deque

from genwright.kernels import PAGE
from genwright.text.cache.pages import PagePool
from genwright.text.engine.request import Request


class Scheduler:
    """First come, first served: decoding sequences get one token each, then prompts get chunks of the rest."""

    def __init__(self, pool: PagePool, max_batch: int, max_tokens: int):
        self.pool, self.max_batch, self.max_tokens = pool, max_batch, max_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self._full = False  # the next waiting request found too few pages, and none have been freed since

    def schedule(self) -> list[tuple[Request, int]]:
        """The requests of the next step and how many of their tokens to compute; decoding requests come first."""
        budget = self.max_tokens
        work: list[tuple[Request, int]] = []
        for request in sorted(self.running, key=lambda request: request.pending > 1):
            if budget and request.pages is not None and self._make_room(request):
                count = min(request.pending, budget)
                work.append((request, count))
                budget -= count
        # A request may have been pre-empted after it was scheduled, to make room for an older one.
        work = [(request, count) for request, count in work if request.pages is not None]
        self._full = False
        while budget and self.may_admit():
            request = self.waiting[0]
            if self._is_being_computed(request):
                break
            if not self._admit(request):
                self._full = True
                break
            self.waiting.popleft()
            self.running.append(request)
            count = min(request.pending, budget)
            work.append((request, count))
            budget -= count
        return work

    def may_admit(self) -> bool:
        """Whether the next step may admit a waiting request."""
        return bool(self.waiting) and len(self.running) < self.max_batch and not self._full

    def remove(self, request: Request, keep: bool) -> None:
        """Remove a request; `keep` keeps its tokens in the prefix tree, otherwise its pages are zeroed."""
        self._full = False
        if request.pages is not None:
            if keep:
                self.pool.finish(request.pages, request.tokens)
            else:
                self.pool.discard(request.pages)
            request.pages = None
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _admit(self, request: Request) -> bool:
        """Allocate pages for the whole prompt, so that partly computed prompts cannot block each other."""
        fresh = request.params.prompt_logprobs and not request.output  # needs the logits of every token
        pages = self.pool.start(request.tokens[:1] if fresh else request.tokens)
        if pages is None:
            return False
        if not self.pool.extend(pages, len(request.tokens)):
            self.pool.release(pages)
            return False
        request.cached_tokens = max(request.cached_tokens, min(pages.length, request.prompt_tokens))
        request.pages = pages
        if fresh:
            request.prompt_logprobs = [None]  # a pre-empted prompt starts again
        return True

    def _make_room(self, request: Request) -> bool:
        """Allocate pages for all its tokens, pre-empting the youngest sequences; False if it was itself pre-empted."""
        assert request.pages is not None
        while not self.pool.extend(request.pages, len(request.tokens)):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is request:
                return False
        return True

    def reserve(self, request: Request, count: int) -> int:
        """Allocate pages for up to `count` more tokens without pre-empting; returns how many tokens fit."""
        assert request.pages is not None
        return self.pool.reserve(request.pages, len(request.tokens) + count) - len(request.tokens)

    def preempt(self, request: Request) -> None:
        """Move a running request back to the head of the queue; its pages stay in the tree until they are evicted."""
        self.remove(request, keep=True)
        self.waiting.appendleft(request)

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
