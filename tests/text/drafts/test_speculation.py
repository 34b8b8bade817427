"""A draft never changes the text: a seed gives the same tokens with any draft, any number of proposals, and none."""

import random
from dataclasses import replace

import pytest
import torch
from text.cache.invariants import available
from text.drafts.setup import (
    DRAFTS,
    GREEDY,
    SAMPLED,
    Letters,
    acceptance,
    answer,
    draft_of,
    engine_with,
    mix,
    prompts,
    run_mix,
)
from text.engine.setup import check_pages, drain, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.drafts.speculation import Draft, Speculation
from genwright.text.engine.request import Acceptance, Request

MIX = 12


@pytest.fixture(scope="module")
def plain(llms) -> list[Request]:
    """The mix of requests, answered without a draft, each alone."""
    engine, requests = engine_with(llms["identical"], None), mix(MIX, seed=0)
    for each in requests:
        drain(engine, [each])
    return requests


class Partial(Draft):
    """Gives a random number of another draft's proposals to a random half of the requests."""

    def __init__(self, draft: Draft):
        self.draft, self.cost, self.rng = draft, draft.cost, random.Random(0)

    def propose(self, wanted, sampler):
        some = [(request, self.rng.randint(1, count)) for request, count in wanted if self.rng.random() < 0.5]
        return self.draft.propose(some, sampler) if some else ({}, None)

    def propose_ahead(self, wanted, verified, sampler):
        self.draft.propose_ahead(wanted, verified, sampler)

    def verified(self, request, proposed, accepted):
        self.draft.verified(request, proposed, accepted)


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("name", DRAFTS)
def test_answers_are_those_without_a_draft(llms, plain, name, steps_ahead):
    """Greedy and sampled, with every option, batched, in chunks; with one step ahead some get no proposals."""
    draft = Partial(draft_of(llms, name)) if steps_ahead else draft_of(llms, name)
    engine = engine_with(llms["identical"], draft, max_tokens=150, max_batch=12, steps_ahead=steps_ahead)
    requests = mix(MIX, seed=0)
    drain(engine, requests, each_step=check_pages)
    assert [answer(r) for r in requests] == [answer(r) for r in plain]
    assert available(engine.pool) == engine.pool.cache.pages
    total = acceptance(requests)
    if name.startswith("identical"):
        assert total.accepted == total.drafted, "a model agrees with itself, at any temperature"
    else:
        assert 0 < sum(total.accepted) < sum(total.drafted)


@pytest.mark.parametrize("name", DRAFTS)
def test_answers_alone_are_those_without_a_draft(llms, plain, name):
    engine, requests = engine_with(llms["identical"], draft_of(llms, name)), mix(MIX, seed=0)[:6]
    for each in requests:
        drain(engine, [each])
    assert [answer(r) for r in requests] == [answer(r) for r in plain[:6]]


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("name", DRAFTS)
def test_arrivals_cancellations_and_few_pages_change_nothing(llms, plain, name, steps_ahead):
    """Requests are pre-empted in both models; the second half of them finds prompts in the prefix cache."""
    expected, requests = 2 * plain, mix(MIX, seed=0) + mix(MIX, seed=0)
    engine = engine_with(
        llms["identical"], draft_of(llms, name, pages=5), Speculation, pages=6, max_batch=8, steps_ahead=steps_ahead
    )
    preempted = []
    preempt = engine.scheduler.preempt
    engine.scheduler.preempt = lambda r: (preempted.append(r), preempt(r))
    run_mix(engine, requests, random.Random(2))
    for got, whole in zip(requests, expected, strict=True):
        if got.finish_reason == "cancelled":
            assert got.output == whole.output[: len(got.output)]
        else:
            assert answer(got) == answer(whole)
    assert preempted
    assert {r.finish_reason for r in requests} == {"length", "stop", "cancelled"}
    assert available(engine.pool) == engine.pool.cache.pages


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_accepted_tokens_come_in_one_step(llms, params):
    engine = engine_with(llms["identical"], draft_of(llms, "identical"))
    r = request(prompts(1, 30, 30)[0], params)
    drain(engine, [r])
    assert engine.steps == 1 + 6 + 1, "the prompt, then five proposals and one token more each time, and three more"
    assert r.acceptance == Acceptance([7, 7, 6, 6, 6], [7, 7, 6, 6, 6])


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["similar", "prompt-lookup"])
def test_acceptance_counts_leading_proposals_that_equal_the_answer(llms, name, params):
    draft, params = draft_of(llms, name), replace(params, frequency_penalty=-3.0)  # repeats itself
    engine, calls = engine_with(llms["identical"], draft), []
    propose, requests = draft.propose, [request(text, params) for text in prompts(6, 20, 60)]

    def recorded(wanted, sampler):
        places, tokens = propose(wanted, sampler)
        calls.extend((r, len(r.tokens), [tokens[i].item() for i in each]) for r, each in places.items())
        return places, tokens

    draft.propose = recorded
    drain(engine, requests)
    expected = {r: Acceptance() for r in requests}
    for r, start, tokens in calls:
        pairs = enumerate(zip(tokens, r.tokens[start:], strict=False))
        expected[r].count(len(tokens), next((i for i, (a, b) in pairs if a != b), len(tokens)))
    assert [r.acceptance for r in requests] == list(expected.values())
    assert 10 < sum(acceptance(requests).accepted) < sum(acceptance(requests).drafted)


@pytest.mark.parametrize("name", DRAFTS)
def test_stop_strings_cut_within_proposals(llms, name):
    prompt = prompts(1, 30, 30, seed=2)[0]
    whole = Request(prompt, SAMPLED, 5, detokenizer=Letters())
    drain(engine_with(llms["identical"], None), [whole])
    for first in (0, 1, 7, 20):
        params = replace(SAMPLED, stop=(whole.text[first : first + 2],))
        cut = Request(prompt, params, 5, detokenizer=Letters())
        drain(engine_with(llms["identical"], draft_of(llms, name)), [cut], each_step=check_pages)
        end = whole.text.index(params.stop[0])
        assert (cut.text, cut.output, cut.finish_reason) == (whole.text[:end], whole.output[: end + 2], "stop")


@pytest.mark.parametrize(("name", "steps_ahead"), zip(DRAFTS, (0, 1, 1, 0, 1, 1), strict=True))
def test_the_context_ends_an_answer(llms, name, steps_ahead):
    texts = [[5] * 180, [9] * 191, prompts(1, 110, 110)[0]]
    params = SamplingParams(max_new_tokens=1000, ignore_eos=True)
    expected, requests = ([request(text, params) for text in texts] for _ in range(2))
    engines = [
        engine_with(llms["identical"], draft, pages=3, steps_ahead=steps_ahead)
        for draft in (None, draft_of(llms, name))
    ]
    assert drain(engines[1], requests) == drain(engines[0], expected)
    assert [len(r.output) for r in requests] == [12, 1, 192 - 165]


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("name", ["similar", "prompt-lookup"])
def test_only_accepted_tokens_enter_the_prefix_cache(llms, name, steps_ahead):
    """Pages that were filled while proposals were accepted and rejected equal freshly computed ones."""
    engine = engine_with(llms["identical"], draft_of(llms, name), steps_ahead=steps_ahead)
    first = request(prompts(1, 30, 30, seed=6)[0], SamplingParams(max_new_tokens=120, ignore_eos=True))
    drain(engine, [first], each_step=check_pages)
    again = request(first.tokens[:-20], GREEDY)
    assert drain(engine, [again])[0][:20] == first.output[-20:]
    assert again.cached_tokens == again.prompt_tokens - 1


def test_nan_ends_its_own_request_alone(llms):
    texts = prompts(2, 20, 30, seed=8)
    whole = drain(engine_with(llms["identical"], None), [request(text, GREEDY) for text in texts])
    engine = engine_with(llms["identical"], draft_of(llms, "identical"))
    run, victims = engine.executor.run, [request(text, GREEDY) for text in texts]

    def poisoned(chunks, known=None):
        logits, row = run(chunks, known).clone(), 0
        for chunk in chunks:
            if chunk.logits == 6 and victims[0].pages and chunk.tables is victims[0].pages.tables():
                logits[row + 3] = float("nan")
            row += chunk.logits
        return logits

    engine.executor.run = poisoned
    drain(engine, victims, each_step=check_pages)
    assert (victims[0].finish_reason, victims[0].output) == ("error", whole[0][:4]), "up to the row that is no number"
    assert (victims[1].finish_reason, victims[1].output) == ("length", whole[1])


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("name", [None, "similar"])
def test_memory_that_runs_out_after_sampling_loses_no_token_and_counts_none_twice(llms, plain, name, steps_ahead):
    engine = engine_with(llms["identical"], name and draft_of(llms, name), steps_ahead=steps_ahead)
    logprobs, calls, reported, requests = engine.sampler.logprobs, [], set(), mix(MIX, seed=0)

    def failing(logits, tokens, top):
        calls.append(top)
        if len(calls) % 3 == 0 and len(engine.scheduler.running) > 1:
            raise torch.OutOfMemoryError("no")
        return logprobs(logits, tokens, top)

    engine.sampler.logprobs = failing
    for r in requests:
        engine.submit(r)
    while engine.busy():
        reported |= set(engine.step())
    assert [answer(r) for r in requests] == [answer(r) for r in plain]
    assert reported == set(requests)


# How many tokens are proposed.


def test_steps_run_ahead_while_proposals_do_not_pay(llms):
    """Then the device has the tokens of a step before the host, and there are trials from time to time."""
    text, params = prompts(1, 30, 30)[0], replace(SAMPLED, max_new_tokens=150)
    expected = drain(engine_with(llms["identical"], None), [request(text, params)])
    engine = engine_with(llms["identical"], draft_of(llms, "unrelated"), Speculation, steps_ahead=1)
    run, kinds, in_flight = engine.executor.run, [], []

    def recorded(chunks, known=None):
        kinds.append("proposals" if chunks[0].logits > 1 else "ahead" if chunks[0].tokens[0] < 0 else "read")
        return run(chunks, known)

    engine.executor.run = recorded
    r = request(text, params)
    assert drain(engine, [r], each_step=lambda engine: in_flight.append(len(engine._in_flight))) == expected
    assert kinds.count("proposals") == r.acceptance.drafted[0] < 25
    assert kinds.count("ahead") > 0.8 * len(kinds)
    assert in_flight[:-2] == [1] * len(in_flight[:-2]), "one step in flight from the first to the last"


def test_steps_run_ahead_of_a_draft_that_has_nothing_to_propose(llms):
    class Silent(Draft):
        cost = 0.0

        def propose(self, wanted, sampler):
            asked.append(len(wanted))
            return {}, None

    text, asked = prompts(1, 30, 30)[0], []
    expected = drain(engine_with(llms["identical"], None), [request(text, SAMPLED)])
    engine = engine_with(llms["identical"], Silent(), Speculation, steps_ahead=1)
    assert drain(engine, [request(text, SAMPLED)]) == expected
    assert len(asked) < 0.3 * engine.steps


def test_proposals_that_are_ready_are_all_verified():
    """They were drafted while the host did not know how many of the last ones were accepted."""

    class Ready(Draft):
        cost = 10.0  # alone it would not pay to propose

        def ready(self, request):
            return 5

        def propose(self, wanted, sampler):
            return {request: list(range(count)) for request, count in wanted}, None

    r = request([1, 2, 3], SAMPLED)
    places, _ = Speculation(Ready(), 7, StepCost(0.0)).propose([r], 64, lambda request, count: count, None)
    assert places == {r: [0, 1, 2, 3, 4]}


def test_the_public_surface(llms, tmp_path):
    make("llama", tmp_path / "model")
    make("llama", tmp_path / "other")
    texts = prompts(3, 4, 40)
    for draft in (tmp_path / "other", "prompt-lookup", "self:int4"):
        llm = LLM(tmp_path / "model", device="cpu", dtype="float32", draft=draft, speculate_k=4, deterministic=True)
        for params in (GREEDY, SAMPLED):
            results = llm.generate(texts, params)
            assert [r.ids for r in results] == [r.ids for r in llms["identical"].generate(texts, params)]
            assert any(r.acceptance for r in results)
    sampled = llm.generate([[5, 9, 17]], SamplingParams(temperature=1.0, n=3, seed=1, max_new_tokens=9))[0]
    assert len({tuple(sample.ids) for sample in (sampled, *sampled.samples)}) == 3
    for wrong, words in (
        ({"draft": "random:tinyllama-1.1b,layers=1"}, "32000 tokens"),
        ({"speculate_k": 0}, "between 1 and 32"),
    ):
        with pytest.raises(UserError, match=words):
            LLM(tmp_path / "model", device="cpu", **wrong)
