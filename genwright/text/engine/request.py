"""SamplingParams, Request and Result: the engine's input and output."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from genwright.arguments import check_settings, plain, setting, short
from genwright.errors import UserError
from genwright.text.config_file import token_ids
from genwright.text.engine.stop_strings import StopString
from genwright.text.tool_calls.parser import ToolCall

if TYPE_CHECKING:  # the command line reads SamplingParams without importing torch
    from genwright.text.cache.pages import SequencePages
    from genwright.text.engine.grammar import Grammar
    from genwright.text.tokenizer.tokenizer import Detokenizer

STOPPED_EARLY = "The answer was stopped early, because the logits contain NaN or memory ran out."  # by "error"
_MAX_BIAS = 1e30  # a larger one could overflow float32 when divided by the temperature


@dataclass(frozen=True)
class SamplingParams:
    """How a request is sampled; applied in the order penalties, bias, temperature, top_k, top_p, min_p."""

    temperature: float = setting(0.0, "Sampling temperature; 0 is greedy.", between=(0.0, 100.0))
    top_k: int = setting(0, "Keep the k most likely tokens; 0 keeps all.", between=(0, 1 << 24))
    top_p: float = setting(1.0, "Keep the most likely tokens up to this total probability.", between=(0.0, 1.0))
    min_p: float = setting(0.0, "Drop tokens below this fraction of the highest probability.", between=(0.0, 1.0))
    # Keskar et al., 2019
    repetition_penalty: float = setting(1.0, "Divides positive logits of tokens that occurred.", between=(0.01, 100.0))
    presence_penalty: float = setting(
        0.0, "Subtracted from the logits of tokens in the answer.", between=(-100.0, 100.0)
    )
    frequency_penalty: float = setting(0.0, "Subtracted for each occurrence in the answer.", between=(-100.0, 100.0))
    logit_bias: Mapping[int, float] = setting(dict, "ID=BIAS, added to a token's logit; may be repeated.")
    seed: int | None = setting(None, "Same seed, same tokens; random by default.", between=(-(1 << 63), (1 << 64) - 1))
    n: int = setting(1, "Answers per prompt.", between=(1, 4096), flags=("-n", "--n", "--num-samples"))
    max_new_tokens: int = setting(128, "Maximum number of tokens of an answer.", between=(1, 1 << 30))
    min_new_tokens: int = setting(0, "Minimum number of tokens of an answer.", between=(0, 1 << 30))
    stop: tuple[str, ...] = setting((), "Text that ends an answer; may be repeated.")
    stop_ids: tuple[int, ...] = setting((), "Token id that ends an answer; may be repeated.", flags=("--stop-id",))
    ignore_eos: bool = setting(False, "Continue past the model's end-of-sequence token.")
    logprobs: int | None = setting(None, "Show log-probabilities and this many alternatives.", between=(0, 1000))
    prompt_logprobs: bool = setting(False, "Also show log-probabilities of the prompt's tokens.")
    priority: int = setting(0, "Requests with a higher priority run first.", between=(-1000, 1000))
    schema: dict[str, Any] | bool | str | None = setting(
        None, "Answer with JSON that follows the JSON Schema in this file.", file=True
    )
    regex: str | None = setting(None, "Answer with text that this regular expression matches.")
    grammar: str | None = setting(None, "Answer as the grammar in this file says, in Lark or GBNF.", file=True)
    # A function of the token ids so far and of a copy of the model's logits, a float32 tensor [vocab]; it returns the
    # logits to sample from, before penalties.
    logits_processor: Callable[[list[int], Any], Any] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not (self.logits_processor is None or callable(self.logits_processor)):
            raise UserError(f"logits_processor must be a function, not {short(self.logits_processor)}.")
        if not isinstance(self.schema, dict | bool | str | None):
            raise UserError(f"schema must be a JSON Schema as a dict or as a text, not {short(self.schema)}.")
        if sum(each is not None for each in (self.schema, self.regex, self.grammar)) > 1:
            raise UserError("Pass only one of schema, regex and grammar.")
        stops = [self.stop] if isinstance(self.stop, str) else plain(self.stop)
        if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
            raise UserError(f"stop must be one or more strings that are not empty, not {short(self.stop)}.")
        stop_ids = token_ids(self.stop_ids, "stop_ids must be a list of token ids")
        checked = {"stop": tuple(stops), "stop_ids": tuple(stop_ids), "logit_bias": _biases(self.logit_bias)}
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen


def _biases(given: Any) -> dict[int, float]:
    """Check biases by token id and convert them to Python numbers."""
    if not isinstance(given, Mapping):
        raise UserError(f"logit_bias must map token ids to numbers, not be {short(given)}.")
    ids = token_ids(list(given), "logit_bias must map token ids to numbers")
    biases = dict(zip(ids, map(plain, given.values()), strict=True))
    for token, bias in biases.items():
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not number or not (-_MAX_BIAS <= bias <= _MAX_BIAS or bias == float("-inf")):
            raise UserError(
                f"logit_bias of token {short(token)} must be a number between {-_MAX_BIAS} and {_MAX_BIAS}, or -inf, "
                f"not {short(bias)}."
            )
    return {token: float(bias) for token, bias in biases.items()}


@dataclass(frozen=True)
class Logprob:
    """A token, its log-probability before sampling parameters apply, and the most likely alternatives."""

    id: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class Timing:
    """Seconds since the request was made, and the tokens of its prompt."""

    first_token: float
    total: float
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache


@dataclass(frozen=True)
class Piece:
    """New tokens of an answer; `text` may lag behind `ids`, because it never ends inside a character."""

    index: int  # of the prompt
    sample: int
    ids: list[int]
    text: str
    finish_reason: str | None = None  # in the last piece: stop, length, cancelled or error


@dataclass
class Acceptance:
    """How many tokens a draft proposed and how many were accepted, by position within a proposal."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int) -> None:
        """Count one proposal, whose first `accepted` tokens were accepted."""
        self.add(Acceptance([1] * drafted, [1] * accepted + [0] * (drafted - accepted)))

    def add(self, other: "Acceptance") -> None:
        self.drafted = [sum(pair) for pair in zip_longest(self.drafted, other.drafted, fillvalue=0)]
        self.accepted = [sum(pair) for pair in zip_longest(self.accepted, other.accepted, fillvalue=0)]

    @property
    def rates(self) -> list[float]:
        """The fraction of tokens accepted, by position."""
        return [accepted / drafted for accepted, drafted in zip(self.accepted, self.drafted, strict=True)]

    @property
    def mean(self) -> float:
        """Tokens accepted per proposal; the step that verifies a proposal adds one more."""
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
    prompt_logprobs: list[Logprob | None] | None = None  # None for the first token
    acceptance: Acceptance | None = None  # None without a draft
    samples: list["Result"] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)  # of a chat with tools

    def cut(self, kept: tuple[int, int] | None) -> "Result":
        """The first ids and characters of a cancelled result, because the engine may have computed more meanwhile."""
        if kept is None:
            return self
        ids, characters = kept
        text = None if self.text is None else self.text[:characters]
        logprobs = None if self.logprobs is None else self.logprobs[:ids]
        return replace(self, finish_reason="cancelled", ids=self.ids[:ids], text=text, logprobs=logprobs)


class Request:
    """One sequence that the engine generates."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        seed: int,
        eos_ids: frozenset[int] = frozenset(),
        detokenizer: "Detokenizer | None" = None,
        index: int = 0,
        sample: int = 0,
        grammar: "Grammar | None" = None,
    ):
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.params, self.seed, self.index, self.sample = params, seed, index, sample
        self.limit = len(prompt) + params.max_new_tokens  # tokens at most, prompt included
        self.ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else eos_ids)
        self.detokenizer, self.grammar = detokenizer, grammar
        self.text = ""
        self._stops = [StopString(text) for text in params.stop]
        self._taken_ids = self._taken_text = 0  # lengths already returned by `take`
        self.order = 0  # of arrival at the engine
        self.pages: SequencePages | None = None
        self.in_flight = 0  # tokens that launched steps compute, and whose results are not committed
        self.unread = 0  # tokens that launched steps sample, known only to the device
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self.exception: Exception | None = None  # of its logits processor or grammar, which ended it
        self.logprobs: list[Logprob] = []
        self.prompt_logprobs: list[Logprob | None] = [None]
        self.acceptance = Acceptance()
        self.stop_text: str | None = None  # the stop string that ended it
        self.started, self.admitted, self.first, self.ended = time.perf_counter(), 0.0, 0.0, 0.0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def pending(self) -> int:
        """The number of tokens that no launched step computes."""
        assert self.pages is not None
        return self.expected - self.pages.length - self.in_flight

    @property
    def expected(self) -> int:
        """The number of tokens once the sampled ones are read."""
        return len(self.tokens) + self.unread

    def add(self, token: int) -> None:
        """Append the next token; finish if it was the last."""
        self.tokens.append(token)
        self.first = self.first or time.perf_counter()
        complete = self.grammar is not None and self.grammar.advance(token)
        if token in self.ends:
            self.finish("stop")
            return
        if self.detokenizer is not None:
            self._add_text(self.detokenizer.push(token))
        if complete:
            self.finish("stop")
        if self.finish_reason is None and len(self.tokens) >= self.limit:
            self.finish("length")

    def finish(self, reason: str) -> None:
        if self.finish_reason is None:
            self.finish_reason, self.ended = reason, time.perf_counter()
            if self.detokenizer is not None:
                self._add_text(self.detokenizer.end())

    def take(self) -> Piece:
        """Return what is new since the last call; text that may become a stop string is held back."""
        held = 0 if self.finish_reason else max((stop.matched for stop in self._stops), default=0)
        ids = self.tokens[self.prompt_tokens + self._taken_ids :]
        text = self.text[self._taken_text : len(self.text) - held]
        self._taken_ids += len(ids)
        self._taken_text += len(text)
        return Piece(self.index, self.sample, ids, text, self.finish_reason)

    def result(self) -> Result:
        assert self.finish_reason is not None
        first, total = (self.first or self.ended) - self.started, self.ended - self.started
        return Result(
            text=self.text if self.detokenizer is not None else None,
            ids=self.output,
            finish_reason=self.finish_reason,
            seed=self.seed,
            timing=Timing(first, total, self.prompt_tokens, self.cached_tokens),
            logprobs=None if self.params.logprobs is None else self.logprobs,
            prompt_logprobs=self.prompt_logprobs if self.params.prompt_logprobs else None,
            acceptance=self.acceptance if self.acceptance.drafted else None,
        )

    def _add_text(self, piece: str) -> None:
        before = len(self.text)
        self.text += piece
        ends = [(stop.text, stop.feed(piece)) for stop in self._stops]
        starts = [(before + end - len(text), text) for text, end in ends if end is not None]
        if starts and len(self.tokens) - self.prompt_tokens > self.params.min_new_tokens:
            start, self.stop_text = min(starts)
            self.text = self.text[:start]
            self.finish_reason, self.ended = "stop", time.perf_counter()
