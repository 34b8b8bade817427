"""How well a model predicts a text: perplexity and bits per byte, over windows that slide."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from genwright.errors import UserError
from genwright.text.engine.request import Logprob, SamplingParams
from genwright.text.llm import LLM

Progress = Callable[[int, int], None]
WINDOW = 1024  # tokens, unless told otherwise or the context is shorter


@dataclass(frozen=True)
class Evaluation:
    """What a model made of a text; the first token has nothing before it and is not counted."""

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
    """A window of a text: tokens `scored` to `end` are predicted, each from all that lie between it and `start`."""

    start: int
    scored: int
    end: int


def spans(tokens: int, window: int, stride: int) -> Iterator[Span]:
    """Windows that predict every token but the first exactly once, at most `stride` each after the first window."""
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
    """The text's likelihood: each token sees `window` - `stride` tokens before it at least, and `window` - 1 at most.

    A window must leave the context room for one token; `stride` is half a window unless told otherwise.
    """
    if llm.tokenizer is None:
        raise UserError("this checkpoint has no tokenizer, so it cannot read a text.")
    most = llm.max_context - 1
    window = min(WINDOW, most) if window is None else window
    if not 2 <= window <= most:
        raise UserError(f"the window should be from 2 to {most} tokens, one fewer than the context, and is {window}.")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride < window:
        raise UserError(f"the stride should be from 1 to {window - 1}, less than the window, and is {stride}.")
    ids = llm.tokenizer.encode(text)
    if len(ids) < 2:
        raise UserError(f"the text has {len(ids)} tokens, and two are the least that can be evaluated.")
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
    """Of each continuation after its context, and whether greedy decoding gives it; contexts lose what does not fit."""
    most = llm.max_context - 1
    sequences = [[*context, *continuation][-most:] for context, continuation in pairs]
    scores = logprobs(llm, sequences, 1, progress)
    found = []
    for (_, continuation), row in zip(pairs, scores, strict=True):
        last = row[len(row) - len(continuation) :] if len(continuation) <= len(row) else row
        found.append((math.fsum(entry.logprob for entry in last), all(entry.id in entry.top for entry in last)))
    return found


def logprobs(
    llm: LLM,
    sequences: Sequence[Sequence[int]],
    tops: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[list[Logprob]]:
    """Of each sequence's tokens but the first, with the `tops` likeliest in their places; batched by the engine."""
    params = SamplingParams(prompt_logprobs=True, logprobs=tops, max_new_tokens=1, ignore_eos=True)
    done = 0

    def tick(_: object) -> None:
        nonlocal done
        done += 1
        progress(done, len(sequences))

    results = llm.generate([list(sequence) for sequence in sequences], params, tick)
    if any(result.finish_reason == "error" for result in results):
        raise UserError("the model's output was not numbers, or memory ran out, so the text could not be evaluated.")
    return [[entry for entry in result.prompt_logprobs or () if entry is not None] for result in results]
