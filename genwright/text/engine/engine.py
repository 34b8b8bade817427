"""The engine's step: schedule, run, sample, take stock."""

from collections.abc import Iterable, Sequence

import torch

from genwright.errors import UserError
from genwright.text.engine.kv import PagePool
from genwright.text.engine.request import Request
from genwright.text.engine.runner import ResidentRunner
from genwright.text.engine.sampler import logprobs, sample
from genwright.text.engine.scheduler import Scheduler
from genwright.text.engine.step import Chunk

Work = list[tuple[Request, int]]


class Engine:
    """Runs requests of any mix of lengths together, a step at a time."""

    def __init__(self, runner: ResidentRunner, max_batch: int, max_tokens: int, max_context: int):
        self.runner = runner
        self.max_context = max_context
        self.pool = PagePool(runner.cache)
        self.scheduler = Scheduler(self.pool, max_batch, max_tokens)
        self.steps = 0

    def check(self, tokens: Sequence[int]) -> None:
        """Refuse what cannot be a prompt."""
        if not tokens:
            raise UserError("a prompt should have at least one token, and this one is empty.")
        if len(tokens) >= self.max_context:
            raise UserError(
                f"the prompt has {len(tokens)} tokens, and the context holds {self.max_context} with the answer."
            )
        self._check_ids(tokens)

    def _check_ids(self, ids: Iterable[int]) -> None:
        vocab = self.runner.model.cfg.vocab_size
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < vocab:
                raise UserError(f"token ids go from 0 to {vocab - 1}, and {token!r} is not one of them.")

    def submit(self, request: Request) -> None:
        """Queue a request that can be served."""
        self.check(request.tokens)
        self._check_ids((*request.params.logit_bias, *request.params.stop_ids))
        request.limit = min(request.limit, self.max_context)
        self.scheduler.waiting.append(request)

    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> None:
        """Advance what is scheduled."""
        self._drop_ended()
        work = self.scheduler.schedule()
        logits = self._run(work) if work else None
        if logits is not None:
            self.steps += 1
            self._take(work, logits)

    def cancel(self, requests: Iterable[Request]) -> None:
        """End those of the requests that have not ended yet."""
        for request in requests:
            request.finish("cancelled")
        self._drop_ended()

    def _drop_ended(self) -> None:
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.finish_reason is not None:
                self.scheduler.remove(request, keep=True)

    def _run(self, work: Work) -> torch.Tensor | None:
        """The step's logits; None if memory ran out and the youngest sequence gave way."""
        try:
            return self.runner.run([_chunk(request, count) for request, count in work])
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
        youngest = self.scheduler.running[-1]
        if len(self.scheduler.running) > 1:
            self.scheduler.preempt(youngest)
        else:
            youngest.finish("error")
        return None

    def _take(self, work: Work, logits: torch.Tensor) -> None:
        """Sample for the sequences that are up to date, and let go of those that ended."""
        ready: list[tuple[Request, int]] = []  # with their rows of the logits
        row = 0
        for request, count in work:
            assert request.pages is not None
            start = request.pages.length
            if _wants_prompt(request, start):
                known = request.tokens[start + 1 : start + count + 1]
                request.prompt_logprobs += logprobs(logits[row : row + len(known)], known, request.params.logprobs or 0)
                row += count
            else:
                row += 1
            request.pages.length += count
            self.pool.share(request.pages, request.tokens)
            if request.pages.length == len(request.tokens):
                ready.append((request, row - 1))
        if not ready:
            return
        requests, rows = map(list, zip(*ready, strict=True))
        chosen = logits if len(rows) == len(logits) else logits[rows]
        for index, (request, token) in enumerate(zip(requests, sample(chosen, requests), strict=True)):
            if token is None:
                request.finish("error")
                continue
            if request.params.logprobs is not None:
                request.logprobs += logprobs(chosen[index : index + 1], [token], request.params.logprobs)
            request.add(token)
        for request in requests:
            if request.finish_reason is not None:
                self.scheduler.remove(request, keep=request.finish_reason != "error")


def _wants_prompt(request: Request, start: int) -> bool:
    return request.params.prompt_logprobs and start < request.prompt_tokens - 1 and not request.output


def _chunk(request: Request, count: int) -> Chunk:
    assert request.pages is not None
    start = request.pages.length
    tokens = request.tokens[start : start + count]
    return Chunk(tokens, start, request.pages.ids(), all_logits=_wants_prompt(request, start))
