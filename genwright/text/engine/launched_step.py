"""LaunchedStep: one step from its launch until the host has read its results."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from genwright.text.cache.pages import SequencePages
from genwright.text.engine.executor import StepExecutor
from genwright.text.engine.request import Logprob, Request
from genwright.text.engine.sampler import Sampler
from genwright.text.ops.step import Chunk, unread


class Part:
    """What a step computes of one request: `count` of its tokens, and those that a draft proposed after them."""

    def __init__(self, request: Request, count: int, proposed: list[int]):
        assert request.pages is not None
        self.request, self.count = request, count
        self.proposed = proposed  # places in the step's `proposed` tensor
        self.pages: SequencePages = request.pages
        self.start = request.pages.length + request.in_flight
        self.position = request.expected  # of the first new token
        self.samples = request.pending == count
        # The token of a request whose logits a function on the host changes is drawn when the step is committed.
        self.processor = request.params.logits_processor if self.samples else None
        self.unread = int(self.samples and not proposed and self.processor is None)
        asked = request.params.prompt_logprobs and self.start < request.prompt_tokens - 1 and not request.output
        self.known = request.tokens[self.start + 1 : self.start + count + 1] if asked else []
        self.rows = count if self.known else int(self.samples) * (1 + len(proposed))  # of logits
        # Results:
        self.logits: Tensor | None = None  # [1, vocab], for the processor
        self.ids: list[int] = []  # drawn after the request's own tokens and after each proposed one; -1 for NaN
        self.proposed_ids: list[int] = []
        self.logprobs: list[Logprob] = []  # of `ids`
        self.prompt_logprobs: list[Logprob] = []  # of `known`

    def is_live(self) -> bool:
        """Whether the request has neither ended nor been pre-empted since the launch."""
        return self.request.pages is self.pages and self.request.finish_reason is None

    def lay_out(self, previous: "LaunchedStep | None", offset: int) -> Chunk:
        """Make the chunk; the device knows the tokens that the previous step draws and, from `offset` on, proposals."""
        tokens = self.request.tokens[self.start : self.start + self.count]
        if len(tokens) < self.count:
            assert previous is not None
            tokens.append(unread(previous.row_of[self.request]))
        tokens += [unread(offset + place) for place in self.proposed]
        self.chunk = Chunk(tokens, self.start, self.pages.tables(), self.rows)
        return self.chunk

    def gained(self, sampler: Sampler) -> list[int]:
        """The request's new tokens: the accepted proposals, and one token more."""
        if self.processor is not None:
            self._process(sampler)
        accepted = 0
        while accepted < len(self.proposed_ids) and self.ids[accepted] == self.proposed_ids[accepted]:
            accepted += 1
        return self.ids[: accepted + 1]

    def _process(self, sampler: Sampler) -> None:
        """Draw the token from the logits that the processor returns."""
        assert self.logits is not None and self.processor is not None
        tokens, top = self.request.tokens, self.request.params.logprobs
        logits = self.processor(list(tokens), self.logits[0].clone()).to(self.logits)[None]
        drawn = sampler.sample(logits, [self.request], [len(tokens)])
        self.ids = drawn.tolist()
        if top is not None:
            values = [each.tolist() for each in sampler.logprobs(self.logits, drawn, top)]
            self.logprobs = [_logprob(self.ids[0], row, top) for row in zip(*values, strict=True)]


class LaunchedStep:
    """The results stay on the device until `read`, which waits for them."""

    def __init__(self, parts: list[Part], proposed: Tensor | None):
        self.parts = parts
        self.proposed = proposed  # int64 [n], the draft's tokens
        self.tokens: Tensor | None = None  # int64 [rows], drawn after each part's own tokens and its proposed ones
        self.row_of: dict[Request, int] = {}  # the row of a request's next token in `tokens`
        self._drawn: list[Part] = []  # the parts in the order of `tokens`

    def run(self, executor: StepExecutor, previous: "LaunchedStep | None") -> None:
        """Launch the forward pass."""
        drawn = None if previous is None else previous.tokens
        chunks = [part.lay_out(previous, 0 if drawn is None else len(drawn)) for part in self.parts]
        self._logits = executor.run(chunks, _joined(drawn, self.proposed))

    def sample(self, sampler: Sampler) -> None:
        """Launch the sampling and the copies to the host; from now on the requests count on the step's results."""
        drawn = list[tuple[Part, int]]()
        for part, last in self._last_rows():
            if part.processor is not None:
                part.logits = self._select([last]).clone()  # the next step overwrites the logits
            elif part.samples:
                drawn.append((part, last))
        drawn.sort(key=lambda item: bool(item[0].proposed))
        self._drawn = [part for part, _ in drawn]
        self.row_of = {part.request: row for row, part in enumerate(self._drawn) if part.unread}
        rows = [last + i for part, last in drawn for i in range(1 + len(part.proposed))]
        self.tokens = self._draw(sampler, rows)
        logprobs = self._logprobs(sampler, rows), self._prompt_logprobs(sampler)
        self._results = Readback(self.tokens, self.proposed, *logprobs[0], *logprobs[1])
        for part in self.parts:
            part.request.in_flight += part.count
            part.request.unread += part.unread

    def _draw(self, sampler: Sampler, rows: Sequence[int]) -> Tensor | None:
        """Sample from these rows of the logits; only tokens without proposed ones before them are counted at once."""
        requests = [part.request for part in self._drawn for _ in range(1 + len(part.proposed))]
        positions = [part.position + i for part in self._drawn for i in range(1 + len(part.proposed))]
        first = sum(not part.proposed for part in self._drawn)
        plain = proposing = None
        if first:
            plain = sampler.sample(self._select(rows[:first]), requests[:first], positions[:first])
        if first < len(rows):
            before = self._before(self._drawn[first:])
            proposing = sampler.sample(self._select(rows[first:]), requests[first:], positions[first:], before)
        return _joined(plain, proposing)

    def _last_rows(self) -> Iterator[tuple[Part, int]]:
        """Each part, and the row of the logits after its request's own last token."""
        end = 0
        for part in self.parts:
            end += part.rows
            yield part, end - 1 - len(part.proposed)

    def _select(self, rows: Sequence[int]) -> Tensor:
        """These rows of the logits."""
        if list(rows) == list(range(len(self._logits))):
            return self._logits
        return self._logits[_on_device(rows, self._logits.device)]

    def _before(self, parts: Sequence[Part]) -> Tensor:
        """The proposed tokens before each row of these parts, int64 [rows, k] padded with -1."""
        assert self.proposed is not None
        most = max(len(part.proposed) for part in parts)
        places = [
            part.proposed[:count] + [-1] * (most - count) for part in parts for count in range(1 + len(part.proposed))
        ]
        index = _on_device(places, self.proposed.device)
        return torch.where(index < 0, -1, self.proposed[index.clamp(min=0)])

    def _logprobs(self, sampler: Sampler, rows: Sequence[int]) -> Sequence[Tensor | None]:
        """Log-probabilities of the drawn tokens of requests that ask for them."""
        asking = [part.request.params.logprobs for part in self._drawn for _ in range(1 + len(part.proposed))]
        places = [place for place, top in enumerate(asking) if top is not None]
        if not places or self.tokens is None:
            return None, None, None
        chosen = self.tokens if len(places) == len(rows) else self.tokens[_on_device(places, self.tokens.device)]
        top = max(top for top in asking if top is not None)
        return sampler.logprobs(self._select([rows[place] for place in places]), chosen.clamp(min=0), top)

    def _prompt_logprobs(self, sampler: Sampler) -> Sequence[Tensor | None]:
        """Log-probabilities of the prompt's tokens of requests that ask for them."""
        rows = [
            row for part, last in self._last_rows() for row in range(last + 1 - part.rows, last + 1)[: len(part.known)]
        ]
        if not rows:
            return None, None, None
        known = _on_device([token for part in self.parts for token in part.known], self._logits.device)
        top = max(part.request.params.logprobs or 0 for part in self.parts if part.known)
        return sampler.logprobs(self._select(rows), known, top)

    def read(self) -> None:
        """Wait for the results, and hand them to the parts."""
        tokens, proposed, *values = self._results.wait()
        chosen, known = zip(*values[:3], strict=True), zip(*values[3:], strict=True)
        row = 0
        for part in self._drawn:
            part.ids = tokens[row : row + 1 + len(part.proposed)]
            part.proposed_ids = [proposed[place] for place in part.proposed]
            row += len(part.ids)
            if (top := part.request.params.logprobs) is not None:
                part.logprobs = [_logprob(token, next(chosen), top) for token in part.ids]
        for part in self.parts:
            top = part.request.params.logprobs or 0
            part.prompt_logprobs = [_logprob(token, next(known), top) for token in part.known]


class Readback:
    """Copies of tensors that are on their way to the host."""

    def __init__(self, *tensors: Tensor | None):
        self._host = [None if tensor is None else _to_host(tensor) for tensor in tensors]
        self._event = torch.cuda.Event() if any(each is not None and each.is_pinned() for each in self._host) else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> list[list[Any]]:
        """The tensors as lists; an empty list for None."""
        if self._event is not None:
            self._event.synchronize()
        return [[] if each is None else each.tolist() for each in self._host]


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both one after the other, without a copy if there is only one."""
    if first is None or second is None:
        return second if first is None else first
    return torch.cat((first, second))


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _on_device(values: Sequence[Any], device: torch.device) -> Tensor:
    """Integers as a tensor, without waiting for the device."""
    tensor = torch.tensor(values, dtype=torch.int64)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _logprob(token: int, values: tuple[float, list[float], list[int]], top: int) -> Logprob:
    chosen, best, ids = values
    return Logprob(token, chosen, dict(zip(ids[:top], best[:top], strict=True)))
