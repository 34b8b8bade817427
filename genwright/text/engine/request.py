"""What a caller asks for and gets back: SamplingParams, Request, Result."""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from genwright.arguments import check_settings, setting
from genwright.errors import UserError
from genwright.text.config_file import plain, short, token_ids
from genwright.text.engine.stop_strings import StopString

if TYPE_CHECKING:  # so that the command line reads SamplingParams without importing torch
    from genwright.text.cache.pages import SequencePages
    from genwright.text.tokenizer.tokenizer import Detokenizer

_MAX_BIAS = 1e30  # more would overflow float32 once divided by a temperature


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded; filters apply in the order penalties, bias, temperature, top_k, top_p, min_p."""

    temperature: float = setting(0.0, "0 is greedy.", between=(0.0, 100.0))
    top_k: int = setting(0, "Keep the k likeliest tokens; 0 keeps all.", between=(0, 1 << 24))
    top_p: float = setting(1.0, "Keep the likeliest tokens that together have this probability.", between=(0.0, 1.0))
    min_p: float = setting(0.0, "Drop tokens below this share of the likeliest one's probability.", between=(0.0, 1.0))
    repetition_penalty: float = setting(  # Keskar et al., 2019
        1.0, "Divides the positive logits of tokens of the prompt and the answer.", between=(0.01, 100.0)
    )
    presence_penalty: float = setting(0.0, "Subtracted once for every token in the answer.", between=(-100.0, 100.0))
    frequency_penalty: float = setting(0.0, "Subtracted for each occurrence in the answer.", between=(-100.0, 100.0))
    logit_bias: Mapping[int, float] = setting(dict, "ID=BIAS, added to a token's logit; may be repeated.")
    seed: int | None = setting(
        None,
        "The same seed gives the same tokens; drawn and reported if not given.",
        between=(-(1 << 63), (1 << 64) - 1),
    )
    n: int = setting(1, "Answers per prompt.", between=(1, 4096), flags=("-n", "--n", "--num-samples"))
    max_new_tokens: int = setting(128, "Tokens of an answer at the most.", between=(1, 1 << 30))
    min_new_tokens: int = setting(0, "Tokens before an answer may end.", between=(0, 1 << 30))
    stop: tuple[str, ...] = setting((), "Text that ends an answer; may be repeated.")
    stop_ids: tuple[int, ...] = setting((), "Token id that ends an answer; may be repeated.", flags=("--stop-id",))
    ignore_eos: bool = setting(False, "Go on past the model's own end.")
    logprobs: int | None = setting(
        None, "Show each token's log-probability, with so many alternatives beside it.", between=(0, 1000)
    )
    prompt_logprobs: bool = setting(False, "Show log-probabilities of the prompt's tokens too.")

    def __post_init__(self) -> None:
        check_settings(self)
        stops = [self.stop] if isinstance(self.stop, str) else plain(self.stop)
        if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
            raise UserError(f"stop must be one or more strings that are not empty, not {short(self.stop)}.")
        self._set("stop", tuple(stops))
        self._set("stop_ids", tuple(token_ids(self.stop_ids, "stop_ids must be a list of token ids")))
        self._set("logit_bias", _biases(self.logit_bias))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen


def _biases(given: Any) -> dict[int, float]:
    """Biases by token id as Python's own numbers."""
    if not isinstance(given, Mapping):
        raise UserError(f"logit_bias must map token ids to numbers, not be {short(given)}.")
    ids = token_ids(list(given), "logit_bias must map token ids to numbers")
    biases = [plain(bias) for bias in given.values()]
    for token, bias in zip(ids, biases, strict=True):
        right = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not right or not (-_MAX_BIAS <= bias <= _MAX_BIAS or bias == float("-inf")):
            raise UserError(
                f"logit_bias of token {short(token)} must be a number between {-_MAX_BIAS} and {_MAX_BIAS}, or -inf, "
                f"not {short(bias)}."
            )
    return {token: float(bias) for token, bias in zip(ids, biases, strict=True)}


@dataclass(frozen=True)
class Logprob:
    """A token, the log-probability that the model itself gave it, and the likeliest alternatives."""

    id: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class Timing:
    """Seconds since the request was made, and what its prompt cost."""

    first_token: float
    total: float
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache


@dataclass(frozen=True)
class Piece:
    """What one step adds to an answer; `text` may lag behind `ids`, never half a character ahead."""

    index: int  # of the prompt
    sample: int
    ids: list[int]
    text: str


@dataclass
class Acceptance:
    """How a draft's guesses fared: by position within a guess, how many tokens were drafted and how many accepted."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int) -> None:
        """Take note of one guess, whose first `accepted` tokens stood."""
        for counts, many in ((self.drafted, drafted), (self.accepted, accepted)):
            counts += [0] * (drafted - len(counts))
            counts[:many] = [number + 1 for number in counts[:many]]

    def add(self, other: "Acceptance") -> None:
        for mine, theirs in ((self.drafted, other.drafted), (self.accepted, other.accepted)):
            mine += [0] * (len(theirs) - len(mine))
            mine[: len(theirs)] = [a + b for a, b in zip(mine, theirs, strict=False)]

    @property
    def rates(self) -> list[float]:
        """The share of tokens accepted, by position."""
        return [accepted / drafted for accepted, drafted in zip(self.accepted, self.drafted, strict=True)]

    @property
    def mean(self) -> float:
        """Tokens accepted per guess; the step that checks a guess gives one more."""
        return sum(self.accepted) / self.drafted[0] if self.drafted else 0.0


@dataclass(frozen=True)
class Result:
    """One answer; `samples` holds the others when n > 1."""

    text: str | None  # None without a tokenizer
    ids: list[int]
    finish_reason: str  # stop, length, cancelled or error
    seed: int
    timing: Timing
    logprobs: list[Logprob] | None = None
    prompt_logprobs: list[Logprob | None] | None = None  # the first token has none
    acceptance: Acceptance | None = None  # None where nothing was drafted
    samples: list["Result"] = field(default_factory=list)


class Request:
    """One sequence on its way through the engine."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        seed: int,
        eos_ids: frozenset[int] = frozenset(),
        detokenizer: "Detokenizer | None" = None,
        index: int = 0,
        sample: int = 0,
    ):
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.params, self.seed, self.index, self.sample = params, seed, index, sample
        self.limit = len(prompt) + params.max_new_tokens  # tokens that it can come to
        self.ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else eos_ids)
        self.detokenizer = detokenizer
        self.text = ""
        self._stops = [StopString(text) for text in params.stop]
        self._told_ids = self._told_text = 0  # how much was handed out in pieces
        self.pages: SequencePages | None = None
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self.logprobs: list[Logprob] = []
        self.prompt_logprobs: list[Logprob | None] = [None]
        self.acceptance = Acceptance()
        self.started, self.first, self.ended = time.perf_counter(), 0.0, 0.0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def pending(self) -> int:
        """Tokens whose rows are not in the cache yet."""
        assert self.pages is not None
        return len(self.tokens) - self.pages.length

    def ahead(self, tokens: list[int]) -> "Request":
        """This request as it stands if it gets these tokens next, for the sampler to look at."""
        if not tokens:
            return self
        view = copy.copy(self)
        view.tokens = [*self.tokens, *tokens]
        return view

    def add(self, token: int) -> None:
        """Take the next token, and see whether it was the last."""
        self.tokens.append(token)
        self.first = self.first or time.perf_counter()
        if token in self.ends:
            self.finish("stop")
            return
        if self.detokenizer is not None:
            self._add_text(self.detokenizer.push(token))
        if self.finish_reason is None and len(self.tokens) >= self.limit:
            self.finish("length")

    def finish(self, reason: str) -> None:
        if self.finish_reason is None:
            self.finish_reason, self.ended = reason, time.perf_counter()
            if self.detokenizer is not None:
                self._add_text(self.detokenizer.end())

    def take(self) -> Piece:
        """What is new since the last call; text that may yet become a stop string is held back."""
        held = 0 if self.finish_reason else max((stop.matched for stop in self._stops), default=0)
        ids, text = (
            self.tokens[self.prompt_tokens + self._told_ids :],
            self.text[self._told_text : len(self.text) - held],
        )
        self._told_ids += len(ids)
        self._told_text += len(text)
        return Piece(self.index, self.sample, ids, text)

    def result(self) -> Result:
        assert self.finish_reason is not None
        return Result(
            text=self.text if self.detokenizer is not None else None,
            ids=self.output,
            finish_reason=self.finish_reason,
            seed=self.seed,
            timing=Timing(
                (self.first or self.ended) - self.started,
                self.ended - self.started,
                self.prompt_tokens,
                self.cached_tokens,
            ),
            logprobs=None if self.params.logprobs is None else self.logprobs,
            prompt_logprobs=self.prompt_logprobs if self.params.prompt_logprobs else None,
            acceptance=self.acceptance if self.acceptance.drafted else None,
        )

    def _add_text(self, piece: str) -> None:
        known = len(self.text)
        self.text += piece
        starts = [known + end - len(stop.text) for stop in self._stops if (end := stop.feed(piece)) is not None]
        if starts and len(self.tokens) - self.prompt_tokens > self.params.min_new_tokens:
            self.text = self.text[: min(starts)]
            self.finish_reason, self.ended = "stop", time.perf_counter()
