"""How well a model predicts a text: perplexity and bits per byte over sliding windows."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from genwright.errors import UserError
from genwright.text.engine.request import Logprob, SamplingParams
from genwright.text.llm import LLM

Progress = Callable[[int, int], None]
WINDOW = 1024  # tokens; the default, if the context is not shorter


@dataclass(frozen=True)
class Evaluation:
    """The likelihood of a text; its first token is not predicted and does not count."""

    tokens: int
    bytes: int
    nats: float  # negative log-likelihood of all tokens

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes


@dataclass(frozen=True)
class Span:
    """A window of a text: tokens `scored` to `end` are predicted, each from the tokens between `start` and itself."""

    start: int
    scored: int
    end: int


def spans(tokens: int, window: int, stride: int) -> Iterator[Span]:
    """Windows that predict every token but the first exactly once; after the first window, at most `stride` each."""
    scored = 1
    while scored < tokens:
        end = min(tokens, window if scored == 1 else scored + stride)
        yield Span(max(0, end - window), scored, end)
        scored = end


def evaluate(
    llm: LLM,
    text: str,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """The likelihood of a text; every token is predicted from `window` - `stride` to `window` - 1 tokens before it.

    A window is at least one token shorter than the context; the default of `stride` is half a window.
    """
    if llm.tokenizer is None:
        raise UserError("Evaluating a text needs a tokenizer, but this checkpoint has none.")
    most = llm.max_context - 1
    window = min(WINDOW, most) if window is None else window
    if not 2 <= window <= most:
        raise UserError(f"window must be between 2 and {most}, one less than the context, not {window}.")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride < window:
        raise UserError(f"stride must be between 1 and {window - 1}, less than the window, not {stride}.")
    ids = llm.tokenizer.encode(text)
    if len(ids) < 2:
        raise UserError(f"The text must have two tokens or more, not {len(ids)}.")
    places = list(spans(len(ids), window, stride))
    scores = logprobs(llm, [ids[place.start : place.end] for place in places], progress=progress)
    found = [
        entry.logprob
        for place, row in zip(places, scores, strict=True)
        for entry in row[place.scored - place.start - 1 :]
    ]
    unscored = len(llm.tokenizer.decode(ids[:1]).encode())
    return Evaluation(len(found), len(text.encode()) - unscored, -math.fsum(found))


def likelihoods(
    llm: LLM, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], progress: Progress = lambda done, total: None
) -> list[tuple[float, bool]]:
    """The log-likelihood of each continuation, and whether greedy decoding gives it; long contexts lose their start."""
    most = llm.max_context - 1
    sequences = [[*context, *continuation][-most:] for context, continuation in pairs]
    scores = logprobs(llm, sequences, 1, progress)
    found = []
    for (_, continuation), row in zip(pairs, scores, strict=True):
        last = row[len(row) - len(continuation) :] if len(continuation) <= len(row) else row
        found.append((math.fsum(entry.logprob for entry in last), all(entry.id in entry.top for entry in last)))
    return found


def logprobs(
    llm: LLM, sequences: Sequence[Sequence[int]], tops: int = 0, progress: Progress = lambda done, total: None
) -> list[list[Logprob]]:
    """Log-probabilities of all tokens of each sequence but the first, with the `tops` likeliest tokens there."""
    params = SamplingParams(prompt_logprobs=True, logprobs=tops, max_new_tokens=1, ignore_eos=True)
    done = 0

    def tick(_: object) -> None:
        nonlocal done
        done += 1
        progress(done, len(sequences))

    results = llm.generate([list(sequence) for sequence in sequences], params, tick)
    if any(result.finish_reason == "error" for result in results):
        raise UserError("The text could not be evaluated: memory ran out, or the model's output was NaN.")
    return [[entry for entry in result.prompt_logprobs or () if entry is not None] for result in results]
