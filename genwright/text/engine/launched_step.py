"""LaunchedStep: one step from its launch until the host has read its results."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genwright.arguments import short
from genwright.device import Download, upload
from genwright.errors import UserError
from genwright.text.engine.executor import StepExecutor, Verified
from genwright.text.engine.grammar import Grammar, StepMasks
from genwright.text.engine.request import Logprob, Request
from genwright.text.engine.sampler import Masks, Sampler
from genwright.text.ops.step import Chunk, unread


class Part:
    """What a step computes of one request: `count` of its tokens, and those that a draft proposed after them."""

    # Results; class attributes, because most parts have few of them and a step has hundreds of parts.
    logits: Tensor | None = None  # [1, vocab], for the processor
    ids: Sequence[int] = ()  # drawn after the request's own tokens and after each proposed one; -1 for NaN
    proposed_ids: Sequence[int] = ()
    logprobs: Sequence[Logprob] = ()  # of `ids`
    prompt_logprobs: Sequence[Logprob] = ()  # of `known`
    chunk: Chunk
    last_row: int  # of the logits after the request's own last token

    def __init__(self, request: Request, count: int, proposed: Sequence[int], forced: bool = False):
        pages, params = request.pages, request.params
        assert pages is not None
        self.request, self.count, self.pages = request, count, pages
        self.proposed = proposed  # places in the step's `proposed` tensor
        self.forced = forced  # whether its grammar proposed them
        self.start = pages.length + request.in_flight
        self.position = request.expected  # of the first new token
        self.samples = self.position == self.start + count
        # The token of a request whose logits a function on the host changes is drawn when the step is committed.
        self.processor = params.logits_processor if self.samples else None
        self.unread = int(self.samples and not proposed and self.processor is None)
        asked = params.prompt_logprobs and self.start < request.prompt_tokens - 1 and not request.output
        self.known = request.tokens[self.start + 1 : self.start + count + 1] if asked else ()
        self.grammar = request.grammar if self.samples else None
        self.rows = count if self.known else int(self.samples) * (1 + len(proposed))  # of logits

    def is_live(self) -> bool:
        """Whether the request has neither ended nor been pre-empted since the launch."""
        return self.request.pages is self.pages and self.request.finish_reason is None

    def lay_out(self, previous: "LaunchedStep | None", offset: int) -> Chunk:
        """Make the chunk; the device knows the tokens that the previous step draws and, from `offset` on, proposals."""
        tokens = self.request.tokens[self.start : self.start + self.count]
        if len(tokens) < self.count:
            assert previous is not None
            tokens.append(unread(previous.row_of[self.request]))
        if self.proposed:
            tokens += [unread(offset + place) for place in self.proposed]
        self.chunk = Chunk(tokens, self.start, self.pages.tables(), self.rows, self.request.prompt_tokens)
        return self.chunk

    def gained(self, sampler: Sampler) -> list[int]:
        """The request's new tokens: the accepted proposals, and one token more."""
        if self.processor is not None:
            self._process(sampler)
        accepted = 0
        while accepted < len(self.proposed_ids) and self.ids[accepted] == self.proposed_ids[accepted]:
            accepted += 1
        return list(self.ids[: accepted + 1])

    def _process(self, sampler: Sampler) -> None:
        """Draw the token from the logits that the processor returns."""
        assert self.logits is not None and self.processor is not None
        tokens, top = self.request.tokens, self.request.params.logprobs
        logits = self.processor(list(tokens), self.logits[0].clone())
        if not isinstance(logits, Tensor) or logits.shape != self.logits[0].shape:
            found = f"of shape {list(logits.shape)}" if isinstance(logits, Tensor) else short(logits)
            raise UserError(f"logits_processor must return logits of shape [{self.logits.shape[1]}], not {found}.")
        masks = None if self.grammar is None else (self.grammar.mask(), np.zeros(1, np.int32))
        drawn = sampler.sample(logits.to(self.logits)[None], [self.request], [len(tokens)], masks=masks)
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
        # Those whose tokens a grammar restricts, and what was proposed for them.
        self.constrained = [part for part in parts if part.grammar is not None and part.processor is None]
        self._proposals = Download(proposed) if any(part.proposed for part in self.constrained) else None
        self._masks: NDArray[np.int32] | None = None

    def compute_masks(self, masks: StepMasks) -> None:
        """Compute which tokens the grammars allow; the host has read all tokens before this step's."""
        rows, self._first_mask = list[tuple[Grammar, list[int]]](), dict[Part, int]()
        proposed = self._proposals.wait()[0] if self._proposals is not None else []
        first = 0
        for part in self.constrained:
            if part.grammar is not None and part.is_live():
                self._first_mask[part] = first
                rows.append((part.grammar, [proposed[place] for place in part.proposed]))
                first += 1 + len(part.proposed)
        self._masks = masks.compute(rows) if rows else None

    def run(self, executor: StepExecutor, previous: "LaunchedStep | None") -> None:
        """Launch the forward pass."""
        drawn = None if previous is None else previous.tokens
        chunks = [part.lay_out(previous, 0 if drawn is None else len(drawn)) for part in self.parts]
        self._logits = executor.run(chunks, _joined(drawn, self.proposed))

    def sample(self, sampler: Sampler) -> None:
        """Launch the sampling and the copies to the host; from now on the requests count on the step's results."""
        plain, proposing = list[Part](), list[Part]()
        end = 0
        for part in self.parts:
            end += part.rows
            part.last_row = end - 1 - len(part.proposed)
            if not part.is_live():
                continue  # the host has read its end since the launch
            if part.processor is not None:
                # A copy, because the next step overwrites the logits.
                part.logits = sampler.whole(self._select([part.last_row])).clone()
            elif part.samples:
                (proposing if part.proposed else plain).append(part)
        self._drawn = plain + proposing
        self.row_of = {part.request: row for row, part in enumerate(plain)}
        self.tokens = _joined(self._draw(sampler, plain), self._draw_after(sampler, proposing))
        logprobs = self._logprobs(sampler), self._prompt_logprobs(sampler)
        self._results = Download(self.tokens, self.proposed, *logprobs[0], *logprobs[1])
        for part in self.parts:
            if part.is_live():
                part.request.in_flight += part.count
                part.request.unread += part.unread

    def verified(self) -> tuple[list[Request], Verified | None]:
        """The requests with a draft's proposals, and where their proposed and drawn tokens are."""
        if self.tokens is None or self.proposed is None:
            return [], None
        ends = accumulate(1 + len(part.proposed) for part in self._drawn)
        rows = [
            (part.request, (end - len(part.proposed) - 1, part.proposed[0], len(part.proposed)))
            for part, end in zip(self._drawn, ends, strict=True)
            if part.proposed and not part.forced
        ]
        if not rows:
            return [], None
        places = np.array([place for _, place in rows], np.int64)
        return [request for request, _ in rows], Verified(places, self.tokens, self.proposed)

    def _draw(self, sampler: Sampler, parts: Sequence[Part]) -> Tensor | None:
        """Sample one token for each of these parts."""
        if not parts:
            return None
        logits = self._select([part.last_row for part in parts])
        requests, positions = [part.request for part in parts], [part.position for part in parts]
        return sampler.sample(logits, requests, positions, masks=self._masks_of([(part, 0) for part in parts]))

    def _draw_after(self, sampler: Sampler, parts: Sequence[Part]) -> Tensor | None:
        """Sample a token for each of these parts, and one after each of its proposed tokens."""
        if not parts:
            return None
        places = [(part, i) for part in parts for i in range(1 + len(part.proposed))]
        logits = self._select([part.last_row + i for part, i in places])
        requests, positions = [part.request for part, _ in places], [part.position + i for part, i in places]
        return sampler.sample(logits, requests, positions, self._before(parts), self._masks_of(places))

    def _masks_of(self, rows: Sequence[tuple[Part, int]]) -> Masks | None:
        """The masks for these rows, each of a part and the number of its proposed tokens before it."""
        if self._masks is None:
            return None
        mask_of = [self._first_mask[part] + i if part in self._first_mask else -1 for part, i in rows]
        return (self._masks, np.array(mask_of, np.int32)) if max(mask_of) >= 0 else None

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
            [*part.proposed[:count], *[-1] * (most - count)]
            for part in parts
            for count in range(1 + len(part.proposed))
        ]
        index = _on_device(places, self.proposed.device)
        return torch.where(index < 0, -1, self.proposed[index.clamp(min=0)])

    def _logprobs(self, sampler: Sampler) -> Sequence[Tensor | None]:
        """Log-probabilities of the drawn tokens of requests that ask for them."""
        if self.tokens is None or all(part.request.params.logprobs is None for part in self._drawn):
            return None, None, None
        drawn = [(part, i) for part in self._drawn for i in range(1 + len(part.proposed))]  # as in `tokens`
        asking = [place for place, (part, _) in enumerate(drawn) if part.request.params.logprobs is not None]
        rows = [drawn[place][0].last_row + drawn[place][1] for place in asking]
        tokens = self.tokens if len(asking) == len(drawn) else self.tokens[_on_device(asking, self.tokens.device)]
        top = max(part.request.params.logprobs or 0 for part in self._drawn)
        return sampler.logprobs(self._select(rows), tokens.clamp(min=0), top)

    def _prompt_logprobs(self, sampler: Sampler) -> Sequence[Tensor | None]:
        """Log-probabilities of the prompt's tokens of requests that ask for them."""
        parts = [part for part in self.parts if part.known]
        rows = [
            row for part in parts for row in range(part.last_row + 1 - part.rows, part.last_row + 1)[: len(part.known)]
        ]
        if not rows:
            return None, None, None
        known = _on_device([token for part in parts for token in part.known], self._logits.device)
        top = max(part.request.params.logprobs or 0 for part in parts)
        return sampler.logprobs(self._select(rows), known, top)

    def read(self) -> None:
        """Wait for the results, and hand them to the parts."""
        tokens, proposed, *values = self._results.wait()
        chosen, known = zip(*values[:3], strict=True), zip(*values[3:], strict=True)
        row = 0
        for part in self._drawn:
            end = row + 1 + len(part.proposed)
            part.ids = tokens[row:end]
            row = end
            if part.proposed:
                part.proposed_ids = [proposed[place] for place in part.proposed]
            if (top := part.request.params.logprobs) is not None:
                part.logprobs = [_logprob(token, next(chosen), top) for token in part.ids]
        for part in self.parts:
            if part.known:
                top = part.request.params.logprobs or 0
                part.prompt_logprobs = [_logprob(token, next(known), top) for token in part.known]


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both one after the other, without a copy if there is only one."""
    if first is None or second is None:
        return second if first is None else first
    return torch.cat((first, second))


def _on_device(values: Sequence[Any], device: torch.device) -> Tensor:
    """Integers as a tensor, without waiting for the device."""
    return upload(torch.tensor(values, dtype=torch.int64), device)


def _logprob(token: int, values: tuple[float, list[float], list[int]], top: int) -> Logprob:
    chosen, best, ids = values
    return Logprob(token, chosen, dict(zip(ids[:top], best[:top], strict=True)))
