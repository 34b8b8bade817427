"""Forced tokens: what a grammar requires next is proposed, and is always accepted, so it costs no step of its own."""

from collections.abc import Sequence

import torch

from genwright.text.drafts.speculation import Proposals, Reserve
from genwright.text.engine.request import Request

MOST = 15  # proposed at a time for each request


def is_due(running: Sequence[Request]) -> bool:
    """Whether a grammar forces tokens after those that the host has not read."""
    return any(
        request.grammar is not None and request.pending <= 1 and len(request.grammar.forced()) > request.unread
        for request in running
    )


def propose(decoding: Sequence[Request], budget: int, reserve: Reserve, device: torch.device) -> Proposals:
    """The forced tokens of decoding requests, at most `budget` in all; none while the host has not read a token."""
    if any(request.unread for request in decoding):
        return {}, None
    places, tokens = dict[Request, list[int]](), list[int]()
    for request in decoding:
        if request.grammar is None or request.params.logits_processor is not None:
            continue
        forced = request.grammar.forced()
        most = min(len(forced), MOST, request.limit - request.expected - 1, budget - len(tokens))
        if most > 0 and (count := reserve(request, most)) > 0:
            places[request] = list(range(len(tokens), len(tokens) + count))
            tokens += forced[:count]
    return places, torch.tensor(tokens, dtype=torch.int64, device=device) if tokens else None


def joined(first: Proposals, second: Proposals) -> Proposals:
    """The proposals of two drafts, for different requests."""
    if first[1] is None or second[1] is None:
        return second if first[1] is None else first
    offset = len(first[1])
    moved = {request: [offset + place for place in places] for request, places in second[0].items()}
    return first[0] | moved, torch.cat((first[1], second[1]))
