"""Sampler: a batch of logits to tokens; the noise depends only on seed, sample, position and token id."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from genwright.rng import key, key_tensor, mix, uniform
from genwright.text.engine.request import Logprob, Request

_MIN_TEMPERATURE = 1e-37  # about the smallest normal float32


class Purpose(IntEnum):
    """What a random draw is for; draws of different purposes at one position are independent."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True)
class Filters:
    """The sampling parameters of a batch, each [rows, 1]."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    candidates: int | None  # the largest top_k, for which tokens are sorted; None: no row needs sorting

    @classmethod
    def of(cls, requests: Sequence[Request], vocab: int, device: torch.device) -> "Filters":
        params = [request.params for request in requests]

        def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        top_k = [min(p.top_k or vocab, vocab) for p in params]
        sorting = min(top_k) < vocab or any(p.top_p < 1 for p in params)
        return cls(
            column([max(p.temperature, _MIN_TEMPERATURE) if p.temperature else 1.0 for p in params], torch.float32),
            column(list(map(float, top_k)), torch.int64),
            column([p.top_p for p in params], torch.float32),
            column([p.min_p for p in params], torch.float32),
            max(top_k) if sorting else None,
        )


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int | None]:
    """Sample the next token of each request from its row of logits [rows, vocab]; None where a row has a NaN."""
    return choose(logits, requests, Purpose.SAMPLE)[0]


def choose(
    logits: torch.Tensor, requests: Sequence[Request], purpose: Purpose
) -> tuple[list[int | None], dict[int, torch.Tensor]]:
    """As `sample`; for drafts also the distribution [vocab] of each row that was not greedy."""
    has_nan = logits.isnan().any(dim=-1)
    logits = adjust(logits, requests)
    tokens = logits.argmax(dim=-1)
    drawn = [row for row, request in enumerate(requests) if request.params.temperature > 0]
    distributions: dict[int, torch.Tensor] = {}
    if drawn:
        sampled = [requests[row] for row in drawn]
        chosen = logits if len(drawn) == len(requests) else logits[drawn]
        probabilities, ids = distribution(chosen, Filters.of(sampled, logits.shape[1], logits.device))
        tokens[drawn] = draw(probabilities, ids, sampled, purpose)
        if purpose == Purpose.DRAFT:
            distributions = dict(zip(drawn, torch.zeros_like(chosen).scatter_(1, ids, probabilities), strict=True))
    return [None if nan else token for token, nan in zip(tokens.tolist(), has_nan.tolist(), strict=True)], distributions


def adjust(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Apply penalties, bias and the minimum length; returns the input itself if no request has any."""
    rows = [row for row, request in enumerate(requests) if adjusts(request)]
    if not rows:
        return logits
    logits = logits.clone()
    for row in rows:
        _adjust_row(logits[row], requests[row])
    return logits


def adjusts(request: Request) -> bool:
    """Whether `adjust` changes a request's logits."""
    p = request.params
    penalised = p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty
    return bool(penalised or p.logit_bias or len(request.tokens) - request.prompt_tokens < p.min_new_tokens)


def _adjust_row(row: torch.Tensor, request: Request) -> None:
    """Adjust one row [vocab] in place."""
    p = request.params
    if p.repetition_penalty != 1:
        seen = torch.tensor(request.tokens, device=row.device).unique()
        values = row[seen]
        row[seen] = torch.where(values > 0, values / p.repetition_penalty, values * p.repetition_penalty)
    if (p.presence_penalty or p.frequency_penalty) and request.output:
        ids, counts = torch.tensor(request.output, device=row.device).unique(return_counts=True)
        row[ids] -= p.presence_penalty + p.frequency_penalty * counts
    if p.logit_bias:
        ids = torch.tensor(list(p.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(p.logit_bias.values()), dtype=row.dtype, device=row.device)
    if len(request.tokens) - request.prompt_tokens < p.min_new_tokens and request.ends:
        row[torch.tensor(sorted(request.ends), device=row.device)] = float("-inf")


def distribution(logits: torch.Tensor, filters: Filters) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [rows, candidates] after temperature, top_k, top_p and min_p, and their token ids."""
    # Subtract the largest logit first, so that a low temperature does not overflow.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / filters.temperature
    if filters.candidates is None:
        ids = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    else:
        logits, ids = logits.topk(filters.candidates, dim=-1)  # sorted, most likely first
        rank = torch.arange(filters.candidates, device=logits.device)
        logits = logits.masked_fill(rank >= filters.top_k, float("-inf"))
    probabilities = logits.softmax(dim=-1)
    if filters.candidates is not None:
        before = probabilities.cumsum(dim=-1) - probabilities  # the probability of all more likely tokens
        probabilities = probabilities.masked_fill((before >= filters.top_p) & (rank > 0), 0)
    floor = filters.min_p * probabilities.amax(dim=-1, keepdim=True)
    probabilities = probabilities.masked_fill(probabilities < floor, 0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), ids


def draw(probabilities: torch.Tensor, ids: torch.Tensor, requests: Sequence[Request], purpose: Purpose) -> torch.Tensor:
    """Sample one id per row with exponential noise: argmin of -log(u) / p is id i with probability p_i."""
    hashed = mix((ids[:1] if ids.stride(0) == 0 else ids).to(torch.int32))  # once if all rows have the same ids
    noise = uniform(mix(hashed ^ _keys(requests, purpose, ids.device)[:, None])).log_().neg_()
    winner = (probabilities / noise).argmax(dim=-1, keepdim=True)
    return ids.gather(1, winner)[:, 0]


def chance(requests: Sequence[Request], purpose: Purpose, device: torch.device) -> torch.Tensor:
    """One uniform number in (0, 1) per row."""
    return uniform(mix(_keys(requests, purpose, device)))


def _keys(requests: Sequence[Request], purpose: Purpose, device: torch.device) -> torch.Tensor:
    return key_tensor([key(r.seed, r.sample, len(r.tokens), purpose) for r in requests], device)


def logprobs(logits: torch.Tensor, chosen: Sequence[int], top: int) -> list[Logprob]:
    """The model's log-probabilities of the chosen tokens and of the `top` most likely ones."""
    scores = logits.log_softmax(dim=-1)
    picked = scores.gather(1, torch.tensor(chosen, device=logits.device)[:, None])[:, 0].tolist()
    values, ids = scores.topk(min(top, scores.shape[-1]), dim=-1)
    rows = zip(chosen, picked, ids.tolist(), values.tolist(), strict=True)
    return [Logprob(token, value, dict(zip(ids, values, strict=True))) for token, value, ids, values in rows]


class Sampler:
    """Stand-in until the new one lands."""

    def __init__(self, vocab, device, fused):
        self.vocab, self.device = vocab, device

    def sample(self, logits, requests, positions, before=None, allowed=None):
        import copy
        views = []
        for i, (r, p) in enumerate(zip(requests, positions)):
            view = copy.copy(r)
            if before is not None:
                view.tokens = [*r.tokens, *[t for t in before[i].tolist() if t >= 0]]
            view.tokens = [*view.tokens, *[0] * (p - len(view.tokens))]
            views.append(view)
        return torch.tensor([-1 if t is None else t for t in sample(logits, views)])

    def count(self, request, tokens):
        pass

    def release(self, request):
        pass

    def logprobs(self, logits, tokens, top):
        scores = logits.log_softmax(dim=-1)
        picked = scores.gather(1, tokens[:, None])[:, 0]
        values, ids = scores.topk(min(top, scores.shape[-1]), dim=-1)
        return picked, values, ids
