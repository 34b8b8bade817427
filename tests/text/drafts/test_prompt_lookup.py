"""Prompt lookup proposes what most often followed the last tokens."""

import torch
from text.drafts.setup import GREEDY, proposed
from text.engine.setup import request

from genwright.text.drafts.prompt_lookup import PromptLookup


def test_it_takes_the_longest_and_commonest_match_and_follows_loops():
    lookup = PromptLookup(torch.device("cpu"))

    def propose(tokens: list[int], count: int) -> list[int]:
        return proposed(lookup, [(request(tokens, GREEDY), count)], None)[0]

    assert propose([1, 2, 3, 4, 5, 6, 1, 2, 3], 3) == [4, 5, 6]
    assert propose([0, 1, 2, 3, 9, 7, 2, 3, 8, 0, 1, 2, 3], 2) == [9, 7], "four matching tokens before two"
    assert propose([2, 3, 4, 2, 3, 5, 2, 3], 2) == [5, 2], "the latest of equals"
    assert propose([5, 1, 5, 1, 5, 2, 5], 1) == [1], "what came more often before what came later"
    assert propose([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7], "a loop goes on"
    assert propose([1, 2, 3, 4], 5) == []
    assert propose([1], 5) == []


def test_it_also_indexes_what_was_added_since():
    lookup, r = PromptLookup(torch.device("cpu")), request([1, 2, 3, 4, 5], GREEDY)
    assert proposed(lookup, [(r, 2)], None) == [[]]
    for token in (2, 3):
        r.add(token)
    assert proposed(lookup, [(r, 2)], None) == [[4, 5]]


def test_requests_without_a_match_are_left_out():
    lookup = PromptLookup(torch.device("cpu"))
    requests = [request(tokens, GREEDY) for tokens in ([1, 2, 1], [1, 2, 3], [4, 4, 4])]
    places, tokens = lookup.propose([(r, 2) for r in requests], None)
    assert places == {requests[0]: [0, 1], requests[2]: [2, 3]}
    assert tokens.tolist() == [2, 1, 4, 4]
    assert lookup.propose([(requests[1], 2)], None) == ({}, None)
