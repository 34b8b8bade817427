"""The engine's step: schedule, run, sample, update the requests."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.cache.pages import PagePool
from genwright.text.drafts.speculation import NO_GUESS, Guess, Speculation, verify
from genwright.text.engine.executor import StepExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import logprobs
from genwright.text.engine.scheduler import Scheduler
from genwright.text.ops.step import Chunk

if TYPE_CHECKING:
    from genwright.text.engine.ahead import DecodeLoop

AHEAD = 2  # most steps of a decode loop that are in flight
Work = list[tuple[Request, int, Guess]]  # how many of a request's tokens to compute, and the draft's tokens after them


class Engine:
    """Runs requests of any lengths together, one step at a time."""

    def __init__(
        self,
        executor: StepExecutor,
        max_batch: int,
        max_tokens: int,
        max_context: int,
        speculation: Speculation | None = None,
        loop: "DecodeLoop | None" = None,
    ):
        self.executor, self.speculation, self.loop = executor, speculation, loop
        self.max_context = max_context
        self.pool = PagePool(executor.cache, max_tokens)
        self.scheduler = Scheduler(self.pool, max_batch, max_tokens)
        self.steps = 0

    def check(self, tokens: Sequence[int]) -> None:
        """Raise a UserError for token ids that cannot be a prompt."""
        if not tokens:
            raise UserError("A prompt must have at least one token, but this one is empty.")
        if len(tokens) >= self.max_context:
            raise UserError(
                f"The prompt has {len(tokens):,} tokens, but the context holds {self.max_context:,} including the "
                "answer; pass a shorter prompt or a larger max_context."
            )
        self._check_ids(tokens)

    def _check_ids(self, ids: Iterable[int]) -> None:
        vocab = self.executor.model.cfg.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise UserError(f"Token ids must be between 0 and {vocab - 1:,}, not {short(token)}.")

    def submit(self, request: Request) -> None:
        """Check a request and add it to the queue."""
        self.check(request.tokens)
        params = request.params
        self._check_ids((*params.logit_bias, *params.stop_ids))
        banned = {token for token, bias in params.logit_bias.items() if bias == float("-inf")}
        if params.min_new_tokens:
            banned |= request.ends
        if len(banned) >= self.executor.model.cfg.vocab_size:
            raise UserError("logit_bias, stop_ids and min_new_tokens together forbid every token.")
        request.limit = min(request.limit, self.max_context)
        self.scheduler.waiting.append(request)

    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> None:
        """Compute the next tokens of the scheduled requests."""
        self._drop_ended()
        if self.loop is not None and self._ran_ahead(self.loop):
            return
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return
        try:
            work = self._guess(scheduled)
            chunks = [_chunk(*item) for item in work]
            logits = self.executor.run(chunks)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            self._give_way()
            return
        self.steps += 1
        self._take(work, logits)
        self._observe([request for request, *_ in work], chunks)
        for request, *_ in work:
            if request.finish_reason is not None:
                self.scheduler.remove(request, keep=request.finish_reason != "error")

    def cancel(self, requests: Iterable[Request]) -> None:
        """Finish those requests that have not finished yet."""
        for request in requests:
            request.finish("cancelled")
        self._drop_ended()

    def _drop_ended(self) -> None:
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.finish_reason is not None:
                self.scheduler.remove(request, keep=True)

    def settle(self) -> None:
        """Drain the decode loop, so that the executor can be used directly."""
        if self.loop is not None:
            self._land(self.loop)

    def _ran_ahead(self, loop: "DecodeLoop") -> bool:
        try:
            return self._run_ahead(loop)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            self._land(loop)  # the ordinary step then makes room
            return False

    def _run_ahead(self, loop: "DecodeLoop") -> bool:
        """Advance the decode loop while all requests only decode; False if there is other work."""
        running = self.scheduler.running
        if loop.requests != running:
            self._land(loop)
        decoding = running and (loop.flying or all(map(loop.serves, running)))
        if not decoding or self.scheduler.may_admit():
            self._land(loop)
            return False
        if not loop.flying:
            if not self._has_room(running, 0):
                return False
            loop.begin(running)
            loop.launch()
        while loop.flying < AHEAD and self._has_room(running, loop.flying):
            loop.launch()
        self._collect(loop)
        return True

    def _has_room(self, requests: Sequence[Request], ahead: int) -> bool:
        """Whether every request continues after `ahead` further tokens and has pages for those."""
        return all(
            len(request.tokens) + ahead < request.limit and self.scheduler.reserve(request, ahead) == ahead
            for request in requests
        )

    def _collect(self, loop: "DecodeLoop") -> None:
        """Read the tokens of the oldest step in flight; if one of them ends a request, drain the loop."""
        self.steps += 1
        for request, token in zip(loop.requests, loop.collect(), strict=True):
            if request.finish_reason is not None or request.pages is None:
                continue
            request.pages.length += 1
            self.pool.share(request.pages, request.tokens)
            if token < 0:
                request.finish("error")
            else:
                request.add(token)
        if any(request.finish_reason is not None for request in loop.requests):
            self._land(loop)

    def _land(self, loop: "DecodeLoop") -> None:
        """Drain the loop: read all steps in flight and remove requests that have finished."""
        while loop.flying:
            self._collect(loop)
        for request in loop.requests:
            if request.finish_reason is not None and request.pages is not None:
                self.scheduler.remove(request, keep=request.finish_reason != "error")
        loop.requests = []

    def _guess(self, scheduled: list[tuple[Request, int]]) -> Work:
        """The step's work with the tokens that a draft proposes; equal lengths are next to each other."""
        guesses: dict[Request, Guess] = {}
        if self.speculation is not None:
            budget = self.scheduler.max_tokens - sum(count for _, count in scheduled)
            ready = [request for request, count in scheduled if request.pending == count == 1]
            guesses = self.speculation.guess(ready, budget, self.scheduler.reserve)
        work = [(request, count, guesses.get(request, NO_GUESS)) for request, count in scheduled]
        return sorted(work, key=lambda item: item[1] + len(item[2].tokens)) if guesses else work

    def _give_way(self) -> None:
        """After running out of memory, pre-empt the youngest sequence, or fail it if it is the only one."""
        youngest = self.scheduler.running[-1]
        if len(self.scheduler.running) > 1:
            self.scheduler.preempt(youngest)
        else:
            youngest.finish("error")

    def _take(self, work: Work, logits: torch.Tensor) -> None:
        """Sample for the sequences whose tokens are all computed."""
        ready: list[tuple[Request, Guess]] = []
        rows: list[int] = []  # of the logits: one per ready request, and one per proposed token
        row = 0
        for request, count, guess in work:
            assert request.pages is not None
            start = request.pages.length
            if _wants_prompt(request, start):
                known = request.tokens[start + 1 : start + count + 1]
                request.prompt_logprobs += logprobs(logits[row : row + len(known)], known, request.params.logprobs or 0)
                row += count - 1
            request.pages.length += count
            self.pool.share(request.pages, request.tokens)
            if not request.pending:
                ready.append((request, guess))
                rows += range(row, row + 1 + len(guess.tokens))
            row += 1 + len(guess.tokens)
        if not ready:
            return
        requests, guesses = map(list, zip(*ready, strict=True))
        chosen = logits if len(rows) == len(logits) else logits[rows]
        row = 0
        for request, guess, gain in zip(requests, guesses, verify(chosen, requests, guesses), strict=True):
            self._add(request, gain, chosen[row : row + len(gain)])
            if self.speculation is not None and guess.tokens:
                self.speculation.learn(request, len(guess.tokens), len(gain) - 1)
            row += 1 + len(guess.tokens)

    def _observe(self, requests: list[Request], chunks: list[Chunk]) -> None:
        if self.speculation is None:
            return
        try:
            self.speculation.draft.observe(requests, chunks)
        except RuntimeError as error:  # out of memory: the draft misses this step, which never changes the text
            if not _out_of_memory(error):
                raise

    def _add(self, request: Request, gain: list[int | None], logits: torch.Tensor) -> None:
        """Append tokens to a request until one ends it; all but the last are already in the cache."""
        assert request.pages is not None
        for row, token in enumerate(gain):
            if token is None:
                request.finish("error")
                return
            if request.params.logprobs is not None:
                request.logprobs += logprobs(logits[row : row + 1], [token], request.params.logprobs)
            request.pages.length += row + 1 < len(gain)
            request.add(token)
            if request.finish_reason is not None:
                return


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _wants_prompt(request: Request, start: int) -> bool:
    return request.params.prompt_logprobs and start < request.prompt_tokens - 1 and not request.output


def _chunk(request: Request, count: int, guess: Guess) -> Chunk:
    assert request.pages is not None
    start = request.pages.length
    tokens = [*request.tokens[start : start + count], *guess.tokens]
    return Chunk(tokens, start, request.pages.tables(), all_logits=bool(guess.tokens) or _wants_prompt(request, start))
