"""Scheduler: which sequences compute how many tokens in the next step."""

from collections import deque

from genwright.kernels import PAGE
from genwright.text.cache.pages import PagePool
from genwright.text.engine.request import Request


class Scheduler:
    """First come, first served: running sequences get their token, then prompts get chunks of what is left."""

    def __init__(self, pool: PagePool, max_batch: int, max_tokens: int):
        self.pool, self.max_batch, self.max_tokens = pool, max_batch, max_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self._full = False  # the next in the queue found too few pages, and none have come free since

    def schedule(self) -> list[tuple[Request, int]]:
        """The step's work: requests and how many of their next tokens to compute, single tokens first."""
        budget = self.max_tokens
        work: list[tuple[Request, int]] = []
        for request in list(self.running):
            if len(work) < budget and request.pages is not None and request.pending == 1 and self._make_room(request):
                work.append((request, 1))
        budget -= len(work)
        for request in list(self.running):
            if budget and request.pages is not None and request.pending > 1 and self._make_room(request):
                count = min(request.pending, budget)
                work.append((request, count))
                budget -= count
        # An older request may have taken the pages of a younger one that was scheduled already.
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
        """Whether a step may take the next in the queue."""
        return bool(self.waiting) and len(self.running) < self.max_batch and not self._full

    def remove(self, request: Request, keep: bool) -> None:
        """Take a request out, its prefix kept in the tree or its pages wiped."""
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
        """Pages for the whole prompt, so that half-read prompts cannot starve each other."""
        fresh = request.params.prompt_logprobs and not request.output  # every token's logits are asked for
        pages = self.pool.start(request.tokens[:1] if fresh else request.tokens)
        if pages is None:
            return False
        if not self.pool.extend(pages, len(request.tokens)):
            self.pool.release(pages)
            return False
        request.cached_tokens = max(request.cached_tokens, min(pages.length, request.prompt_tokens))
        request.pages = pages
        if fresh:
            request.prompt_logprobs = [None]  # a pre-empted prompt starts over
        return True

    def _make_room(self, request: Request) -> bool:
        """Pages for all its tokens, taken from the youngest sequences if need be; False if it was the youngest."""
        assert request.pages is not None
        while not self.pool.extend(request.pages, len(request.tokens)):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is request:
                return False
        return True

    def reserve(self, request: Request, count: int) -> int:
        """Pages for up to `count` tokens behind its own, if nobody runs on them; for how many there is room."""
        assert request.pages is not None
        return self.pool.reserve(request.pages, len(request.tokens) + count) - len(request.tokens)

    def preempt(self, request: Request) -> None:
        """Back to the head of the queue; what it computed stays in the tree for as long as there is room."""
        assert request.pages is not None
        self.pool.finish(request.pages, request.tokens)
        request.pages = None
        self.running.remove(request)
        self.waiting.appendleft(request)
        self._full = False

    def _is_being_computed(self, request: Request) -> bool:
        """Whether a running prompt is about to compute whole pages that this one begins with too."""
        for other in self.running:
            if other.pages is None or other.pages.length >= other.prompt_tokens:
                continue
            most = min(len(other.tokens), len(request.tokens) - 1) // PAGE
            for page in range(most):
                span = slice(page * PAGE, (page + 1) * PAGE)
                if other.tokens[span] != request.tokens[span]:
                    break
                if span.stop > other.pages.length:
                    return True
        return False
