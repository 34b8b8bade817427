"""Tokens that a grammar forces are proposed, so they cost no step of their own."""

import re

import pytest
import torch
from text.engine.setup import engine_of
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.text.drafts.forced_tokens import MOST, joined, propose

pytest.importorskip("llguidance")
FORCED = "0123456789" * 4


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return LLM(make_chat_model(tmp_path_factory.mktemp("model")), device="cpu", dtype="float32")


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("limit", [100, 30, 2])
def test_forced_tokens_cost_no_step_of_their_own(llm, steps_ahead, limit):
    engine = engine_of(llm, 64, deterministic=True, steps_ahead=steps_ahead)
    params = SamplingParams(regex=f"(a|b){FORCED}(c|d)", max_new_tokens=limit, logprobs=1)
    request = llm.requests("Count: ", params)[0]
    engine.submit(request)
    while engine.busy():
        engine.step()
    assert re.fullmatch(params.regex, request.text) or limit < 42
    assert len(request.output) == min(limit, 42) == len(request.logprobs)
    assert engine.steps < 10
    assert request.acceptance.drafted == []  # these are not a draft's


def test_as_many_as_there_is_room_for(llm):
    requests = [
        llm.requests("x", SamplingParams(regex=FORCED, max_new_tokens=limit))[0] for limit in (100, 5, 100, 100)
    ]
    free = llm.requests("x", SamplingParams())[0]
    places, tokens = propose([free, *requests], 30, lambda request, count: min(count, 9), torch.device("cpu"))
    assert [len(places.get(request, ())) for request in (free, *requests)] == [0, 9, 4, 9, 8]
    assert MOST > 9 and llm.tokenizer.decode(tokens[places[requests[1]]].tolist()) == "0123"


def test_proposals_of_two_drafts():
    first, second = ({"a": [0, 1]}, torch.tensor([5, 6])), ({"b": [0]}, torch.tensor([7]))
    places, tokens = joined(first, second)
    assert (places, tokens.tolist()) == ({"a": [0, 1], "b": [2]}, [5, 6, 7])
    assert joined(first, ({}, None)) is first and joined(({}, None), second) is second
