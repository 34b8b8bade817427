"""Prompt lookup (Saxena, 2023): proposes tokens without a model, for text that repeats the prompt or itself."""

from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from genwright.text.drafts.speculation import Draft, Proposals
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler

PROMPT_LOOKUP = "prompt-lookup"  # its name as a draft


class PromptLookup(Draft):
    """Proposes what most often followed the last few tokens so far, in the prompt and the answer."""

    cost = 0.0
    SIZES = (4, 2, 1)  # of n-grams that must match, longest first

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seen: WeakKeyDictionary[Request, NGrams] = WeakKeyDictionary()

    def propose(self, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> Proposals:
        places, tokens = dict[Request, list[int]](), list[int]()
        for request, count in wanted:
            if found := self._look_up(request, count):
                places[request] = list(range(len(tokens), len(tokens) + len(found)))
                tokens += found
        return places, torch.tensor(tokens, dtype=torch.int64, device=self.device) if tokens else None

    def _look_up(self, request: Request, count: int) -> list[int]:
        seen = self._seen.setdefault(request, NGrams(self.SIZES))
        seen.read(request.tokens)
        end = list(request.tokens[-max(self.SIZES) :])
        found: list[int] = []
        while len(found) < count and (token := seen.next(end + found)) is not None:
            found.append(token)
        return found


class NGrams:
    """The token that most often followed each n-gram; among equals the latest."""

    def __init__(self, sizes: Sequence[int]):
        self.sizes, self.known = sizes, 0
        self.count: Counter[tuple[int, ...]] = Counter()  # of each n-gram with the token after it
        self.best: dict[tuple[int, ...], int] = {}

    def read(self, tokens: Sequence[int]) -> None:
        """Count the n-grams of tokens added since the last call."""
        for place in range(self.known, len(tokens)):
            for size in self.sizes:
                if place >= size:
                    run, token = tuple(tokens[place - size : place]), tokens[place]
                    self.count[*run, token] += 1
                    if run not in self.best or self.count[*run, token] >= self.count[*run, self.best[run]]:
                        self.best[run] = token
        self.known = len(tokens)

    def next(self, tokens: list[int]) -> int | None:
        """The token that follows the longest known n-gram at the end of these tokens."""
        runs = (tuple(tokens[-size:]) for size in self.sizes)
        return next((self.best[run] for run in runs if run in self.best), None)
