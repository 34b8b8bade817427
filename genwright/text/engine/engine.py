"""The engine's step: schedule, propose, run, sample, commit."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from genwright.arguments import one_of, short
from genwright.errors import UserError
from genwright.text.cache.tiered import new_pages
from genwright.text.drafts import forced_tokens
from genwright.text.drafts.speculation import Speculation
from genwright.text.engine.executor import ResidentExecutor, StepExecutor
from genwright.text.engine.grammar import StepMasks
from genwright.text.engine.launched_step import LaunchedStep, Part
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.engine.scheduler import Scheduler
from genwright.text.engine.vocabulary_ranks import VocabularyRanks
from genwright.text.ops.step import Chunk

_NO_ROOM = "The cache has no room for {} tokens beside the running requests."


class Engine:
    """Runs requests of any lengths together, one step at a time.

    With `steps_ahead` 1 a step is launched before the host reads the tokens of the step before it, so that a GPU never
    waits for the host. The host then sees the end of a request one step late; what that step computed of it is dropped.
    """

    def __init__(
        self,
        executor: StepExecutor,
        max_batch: int,
        max_tokens: int,
        max_context: int,
        speculation: Speculation | None = None,
        steps_ahead: int = 0,
        vocabulary_ranks: VocabularyRanks | None = None,
    ):
        self.executor, self.speculation = executor, speculation
        self.steps_ahead = 0 if speculation is not None and speculation.draft.sees_all else steps_ahead
        self.max_context = max_context
        model, fused = executor.model, executor.ops.capturable
        self.sampler = Sampler(model.cfg.vocab_size, model.device, fused, vocabulary_ranks)
        self.pool = new_pages(executor.cache, max_tokens * (1 + steps_ahead))
        self.scheduler = Scheduler(self.pool, max_batch, max_tokens, self.sampler.release)
        self.steps = 0
        self._masks = StepMasks()
        self._in_flight: deque[LaunchedStep] = deque()
        self._changed: dict[Request, None] = {}  # requests with new tokens or an end that `step` has not returned

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

    def check_request(self, request: Request) -> None:
        """Raise a UserError for a request that cannot be run."""
        self.check(request.tokens)
        params = request.params
        self._check_ids((*params.logit_bias, *params.stop_ids))
        banned = {token for token, bias in params.logit_bias.items() if bias == float("-inf")}
        if params.min_new_tokens:
            banned |= request.ends
        if len(banned) >= self.executor.model.cfg.vocab_size:
            raise UserError("logit_bias, stop_ids and min_new_tokens together forbid every token.")

    def submit(self, request: Request) -> None:
        """Check a request and add it to the queue."""
        self.check_request(request)
        request.limit = min(request.limit, self.max_context)
        self.scheduler.add(request)

    def logits(self, ids: list[int]) -> torch.Tensor:
        """The logits after every token, computed between two steps."""
        return self._rows(ids, lambda chunk: self.sampler.whole(self.executor.run([chunk])).clone())

    def embed(self, ids: list[int], pooling: str) -> torch.Tensor:
        """The mean or the last of the tokens' final hidden states, [dim] of length 1, computed between two steps."""
        one_of("pooling", pooling, ("mean", "last"))
        self.check(ids)
        executor = self.executor
        if not isinstance(executor, ResidentExecutor) or executor.pipeline is not None:
            raise UserError("Embeddings need all layers of the model in one device's memory, without offload or pp.")
        rows = self._rows(ids, executor.hidden_states)
        return torch.nn.functional.normalize(rows.mean(0) if pooling == "mean" else rows[-1], dim=-1).cpu()

    def _rows(self, ids: list[int], compute: Callable[[Chunk], torch.Tensor]) -> torch.Tensor:
        """What `compute` returns for the chunks of a sequence, one row per token."""
        pages = self.pool.start(ids[:1])
        if pages is None:
            raise UserError(_NO_ROOM.format(len(ids)))
        rows, max_tokens = [], self.scheduler.max_tokens
        try:
            for start in range(0, len(ids), max_tokens):
                chunk = ids[start : start + max_tokens]
                if not self.pool.extend(pages, start + len(chunk)):
                    raise UserError(_NO_ROOM.format(len(ids)))
                rows.append(compute(Chunk(chunk, start, pages.tables(), len(chunk))))
                pages.length += len(chunk)
                self.pool.share(pages, ids)  # frees pages that windows have passed
        finally:
            self.pool.release(pages)
        return torch.cat(rows)

    def close(self) -> None:
        """Remove what is on disk, and end what other processes run for this engine."""
        self.executor.close()

    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._in_flight or self._changed)

    def step(self) -> list[Request]:
        """Launch the next step and commit the oldest one in flight; returns requests with new tokens or an end.

        An exception of a logits processor or grammar ends its request and is raised; the next call returns what else
        changed.
        """
        if self._in_flight and self._awaits_tokens():
            self._commit(0)
        launched = self._launch()
        self._commit(self.steps_ahead if launched else 0)
        changed, self._changed = list(self._changed), {}
        return changed

    def _awaits_tokens(self) -> bool:
        """Whether the next step depends on what the host has not read: which proposals are accepted, or new ones."""
        running = self.scheduler.running
        if self._in_flight[-1].proposed is not None or forced_tokens.is_due(running):
            return True
        return self.speculation is not None and (self.speculation.draft.sees_all or self.speculation.is_due(running))

    def cancel(self, requests: Iterable[Request]) -> None:
        """Finish those requests that have not finished yet; `step` does not return them any more."""
        for request in requests:
            request.finish("cancelled")
            self.scheduler.remove(request, keep=True)
            self._changed.pop(request, None)

    def _launch(self) -> bool:
        """Launch the next step; False if there is nothing to compute or no memory to compute it in."""
        try:
            step = self._propose(self.scheduler.schedule())
            if not step.parts:
                return False
            step.run(self.executor, self._in_flight[-1] if self._in_flight else None)
            if step.constrained:  # while the device runs it
                self._commit(0)
                step.compute_masks(self._masks)
            step.sample(self.sampler)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            self._give_way()
            return False
        self.steps += 1
        self._in_flight.append(step)
        if self.speculation is not None and self.steps_ahead:
            with _surviving_out_of_memory():
                self.speculation.propose_ahead(*step.verified(), self.sampler)
        return True

    def _propose(self, scheduled: list[tuple[Request, int]]) -> LaunchedStep:
        """The step's parts, with the tokens that grammars force or a draft proposes; equal lengths are together."""
        budget = self.scheduler.max_tokens - sum(count for _, count in scheduled)
        decoding = [request for request, count in scheduled if request.pending == count == 1]
        reserve, device = self.scheduler.reserve, self.executor.model.device
        forced, _ = found = forced_tokens.propose(decoding, budget, reserve, device)
        if self.speculation is not None:
            others = [request for request in decoding if request not in forced]
            budget -= sum(map(len, forced.values()))
            with _surviving_out_of_memory():
                found = forced_tokens.joined(found, self.speculation.propose(others, budget, reserve, self.sampler))
        places, proposed = found
        parts = [Part(request, count, places.get(request, ()), request in forced) for request, count in scheduled]
        if places:
            parts.sort(key=lambda part: part.count + len(part.proposed))
        return LaunchedStep(parts, proposed if places else None)

    def _give_way(self) -> None:
        """After running out of memory, try again without steps in flight, then without the last sequence in order.

        A sequence that fails alone ends with an error.
        """
        running, in_flight = self.scheduler.running, bool(self._in_flight)
        self._commit(0)
        for request in running:
            self.sampler.release(request)  # it may have counted tokens of the step that failed
        if in_flight:
            return
        if len(running) > 1:
            self.scheduler.preempt(running[-1])
            self.scheduler.hold()
        elif running:
            request = running[-1]
            request.finish("error")
            self.scheduler.remove(request, keep=True)
            self._changed[request] = None

    def _commit(self, steps_ahead: int) -> None:
        """Read the oldest steps until only `steps_ahead` are in flight, and give their tokens to their requests."""
        failures: list[Exception] = []
        while len(self._in_flight) > steps_ahead:
            step = self._in_flight.popleft()
            step.read()
            parts = [part for part in step.parts if part.is_live()]
            for part in parts:
                try:
                    self._commit_part(part)
                except Exception as error:  # of its logits processor or grammar
                    part.request.finish("error")
                    if not _out_of_memory(error):
                        part.request.exception = error
                        failures.append(error)
            self._observe(parts)
            for part in parts:
                if part.request.finish_reason is not None:
                    self.scheduler.remove(part.request, keep=part.request.finish_reason != "error")
            self._changed |= dict.fromkeys(part.request for part in parts if part.samples)
        if failures:
            raise failures[0]

    def _commit_part(self, part: Part) -> None:
        """Give a request what a step computed of it: rows of the cache, log-probabilities and tokens."""
        request, pages = part.request, part.pages
        request.in_flight -= part.count
        request.unread -= part.unread
        request.prompt_logprobs += part.prompt_logprobs
        pages.length += part.count
        self.pool.share(pages, self.scheduler.keys(request))
        if not part.samples:
            return
        gained = part.gained(self.sampler)
        if part.proposed:
            if self.speculation is not None and not part.forced:
                self.speculation.learn(request, part.proposed_ids, len(gained) - 1)
            self.sampler.count(request, [token for token in gained if token >= 0])
        for index, token in enumerate(gained):
            if token < 0:
                request.finish("error")
                return
            request.logprobs += part.logprobs[index : index + 1]
            pages.length += index + 1 < len(gained)  # an accepted token's row is in the cache
            request.add(token)
            if request.finish_reason is not None:
                return

    def _observe(self, parts: list[Part]) -> None:
        if self.speculation is None:
            return
        with _surviving_out_of_memory():
            self.speculation.draft.observe([part.request for part in parts], [part.chunk for part in parts])


@contextmanager
def _surviving_out_of_memory() -> Iterator[None]:
    """A draft that runs out of memory misses a step, which never changes the text."""
    try:
        yield
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise


def _out_of_memory(error: Exception) -> bool:
    """Whether there was no memory left, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
