"""A draft model proposes what it would propose without any state, and its failures cost only proposals."""

import random
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import transformers
from text.cache.invariants import available, check_pool
from text.drafts.setup import GREEDY, SAMPLED, Steady, draft_of, engine_with, prompts, proposed, sampler_of
from text.engine.setup import check_pages, drain, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.text.cache.pages import SequencePages
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Request
from genwright.text.ops.cpu_ops import CpuOps


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_it_never_reads_rejected_tokens(llms, params):
    """It proposes what a new draft model without any state proposes."""
    draft, sampler = draft_of(llms, "similar"), sampler_of(llms["similar"])
    r = request(prompts(1, 40, 40)[0], params)
    r.pages = SequencePages([0])
    for accepted, others in ((0, [9]), (2, [9]), (5, [9]), (0, []), (1, [9, 8, 7, 6]), (0, [9, 8])):
        (tokens,) = proposed(draft, [(r, 5)], sampler)
        assert [tokens] == proposed(draft_of(llms, "similar"), [(r, 5)], sampler)
        assert len(tokens) == 5
        draft.verified(r, tokens, accepted)
        for token in tokens[:accepted] + others:
            r.add(token)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_it_proposes_what_it_would_answer(llms, params):
    """Also in a batch, where some requests want fewer tokens."""
    texts, counts = prompts(4, 5, 90), (2, 5, 1, 3)
    expected = drain(engine_with(llms["similar"], None), [request(text, params) for text in texts])
    requests = [request(text, params) for text in texts]
    for r in requests:
        r.pages = SequencePages([0])
    got = proposed(draft_of(llms, "similar"), list(zip(requests, counts, strict=True)), sampler_of(llms["similar"]))
    assert got == [tokens[:count] for tokens, count in zip(expected, counts, strict=True)]


def test_it_goes_on_while_the_model_verifies(llms):
    """As many of its tokens are accepted as if it waited; at the end it may propose fewer."""
    texts, found = prompts(2, 5, 90), list[list[list[int]]]()
    for name in ("similar alone", "similar"):
        engine = engine_with(llms["identical"], draft_of(llms, name), steps_ahead=1)
        decode, ahead = engine.speculation.draft.executor.decode, []
        engine.speculation.draft.executor.decode = lambda *args, decode=decode, ahead=ahead: (
            ahead.append(len(args) == 4 and args[3] is not None),
            decode(*args),
        )[1]
        requests = [request(text, SAMPLED) for text in texts]
        drain(engine, requests)
        found.append([r.acceptance.accepted for r in requests])
        if name == "similar alone":
            assert sum(ahead) > 0.8 * len(ahead) > 5
    assert found[0] == found[1]


def test_its_shorter_context_ends_proposals(llms):
    engine = engine_with(llms["identical"], draft_of(llms, "identical", max_context=80))
    text, params = prompts(1, 44, 44)[0], SamplingParams(max_new_tokens=60, ignore_eos=True)
    r = request(text, params)
    assert drain(engine, [r]) == drain(engine_with(llms["identical"], None), [request(text, params)])
    assert 0 < r.acceptance.drafted[0] < 5


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_cancelling_returns_every_page_of_both_models(llms, steps_ahead):
    texts = prompts(24, 1, 200, seed=3)
    engine = engine_with(llms["identical"], draft_of(llms, "similar"), pages=30, max_batch=8, steps_ahead=steps_ahead)
    requests = [request(text, SamplingParams(max_new_tokens=20, ignore_eos=True)) for text in texts]
    rng = random.Random(4)

    def cancel_some(engine):
        check_pages(engine)
        engine.cancel(r for r in rng.sample(requests, 3) if rng.random() < 0.3)

    drain(engine, requests, each_step=cancel_some)
    assert {r.finish_reason for r in requests} == {"length", "cancelled"}
    assert available(engine.pool) == engine.pool.cache.pages
    draft = engine.speculation.draft
    draft.propose([], engine.sampler)
    assert available(draft.pool) == draft.pool.cache.pages


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_nan_ends_its_proposals(llms, params):
    engine = engine_with(llms["identical"], draft_of(llms, "identical"))
    draft = engine.speculation.draft
    run, calls = draft.executor.run, []

    def broken(chunks, known=None):
        calls.append(len(chunks))
        return torch.full_like(run(chunks, known), float("nan"))

    draft.executor.run = broken
    texts = prompts(3, 5, 20)
    expected = drain(engine_with(llms["identical"], None), [request(text, params) for text in texts])
    assert drain(engine, [request(text, params) for text in texts]) == expected
    assert len(calls) == 5, "one proposal for each request, all in the same steps"


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_running_out_of_memory_costs_only_proposals(llms, steps_ahead):
    texts = prompts(3, 5, 20, seed=9)
    expected = drain(engine_with(llms["identical"], None), [request(text, GREEDY) for text in texts])
    for count in (1, 3):
        engine = engine_with(llms["identical"], draft_of(llms, "identical"), max_batch=4, steps_ahead=steps_ahead)
        run, calls = engine.speculation.draft.executor.run, []

        def short_of_memory(chunks, known=None, run=run, calls=calls):
            calls.append(len(chunks))
            if len(calls) % 4 == 2:
                raise torch.OutOfMemoryError("no")
            return run(chunks, known)

        engine.speculation.draft.executor.run = short_of_memory
        requests = [request(text, GREEDY) for text in texts[:count]]
        assert drain(engine, requests, each_step=check_pages) == expected[:count]
        assert {r.finish_reason for r in requests} == {"length"}
        assert len(calls) > 10


def test_a_window_does_not_cut_proposals_behind_a_long_prompt(tmp_path):
    """Its groups with a window get pages step by step: those of proposals too, also beyond the prompt's last page."""
    make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    sampler, text = sampler_of(llm), prompts(1, 400, 400, seed=11)[0]
    for length in (125, 190, 380):
        draft = draft_of({"identical": llm}, "identical", pages=12)
        r = request(text[:length], GREEDY)
        r.pages = SequencePages([0])
        for _ in range(4):  # pages are crossed between proposals and inside them
            (tokens,) = proposed(draft, [(r, 5)], sampler)
            assert tokens == llm.generate([r.tokens], SamplingParams(max_new_tokens=5, ignore_eos=True))[0].ids
            check_pool(draft.pool, list(draft._pages.values()))
            draft.verified(r, tokens, 5)
            r.tokens += tokens
        assert all((rows[:, 0] == 0).all() for rows in draft.executor.cache.rows.values()), "the null page stays zero"


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_without_pages_it_fails_no_request(tmp_path, steps_ahead):
    make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    texts, params = prompts(4, 150, 300, seed=12), replace(SAMPLED, max_new_tokens=12)
    expected = drain(engine_with(llm, None), [request(text, params) for text in texts])
    for pages in (2, 5):
        draft = draft_of({"identical": llm}, "identical", pages=pages)
        engine = engine_with(llm, draft, Steady, steps_ahead=steps_ahead)
        assert drain(engine, [request(text, params) for text in texts], each_step=check_pages) == expected


# The noise is shared: a draft's token agrees with the model's more often than two independent draws would.


def agreement(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The probability that both draws are the same, for rows of distributions that have the same Gumbel noise."""
    ratios = np.maximum(p[..., None, :] / p[..., :, None], q[..., None, :] / q[..., :, None])
    return (1 / ratios.sum(axis=-1)).sum(axis=-1)


def check_bounds(p: np.ndarray, q: np.ndarray) -> None:
    """At least (1 - d) / (1 + d) (Daliri et al., 2024), and at most 1 - d, as of any coupling."""
    d = abs(p - q).sum(axis=-1) / 2
    assert ((1 - d) / (1 + d) <= agreement(p, q) + 1e-9).all()
    assert (agreement(p, q) <= 1 - d + 1e-9).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_draws_agree_as_often_as_the_paper_says(llms, temperature, spread, full_size):
    count = 20_000 if full_size else 1_500
    rng, vocab = np.random.default_rng(1), llms["identical"].model.cfg.vocab_size
    model = rng.normal(0, 1.5, vocab).astype(np.float32)
    draft = (model + rng.normal(0, spread, vocab)).astype(np.float32)
    p, q = (scipy.special.softmax(each.astype(float) / temperature) for each in (model, draft))
    check_bounds(p, q)
    sampler, params = sampler_of(llms["identical"]), SamplingParams(temperature=temperature)
    requests = [Request([3], params, seed) for seed in range(count)]
    tokens = [
        sampler.sample(torch.tensor(each).expand(count, -1), requests, [1] * count, torch.empty(count, 0).long())
        for each in (model, draft)
    ]
    same = int((tokens[0] == tokens[1]).sum())
    assert scipy.stats.binomtest(same, count, min(agreement(p, q), 1.0)).pvalue > 1e-4


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}], ids=str)
def test_an_unrelated_draft_is_accepted_as_often_as_the_paper_says(tmp_path, options, full_size):
    """The first proposals for many seeds, through the whole engine."""
    count, models = 2_000 if full_size else 400, []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=11,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.15,
            max_position_embeddings=128,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / str(seed))
        models.append(LLM(tmp_path / str(seed), device="cpu", dtype="float32"))
    params = SamplingParams(**{"temperature": 1.0, **options}, max_new_tokens=2, ignore_eos=True)
    executor = ResidentExecutor(models[1].model, CpuOps(deterministic=True), 128, 64, 256)
    engine = engine_with(models[0], DraftModel(executor, models[0].model, 256, 128), k=1, pages=128, max_batch=64)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    requests = [Request(prompt, params, seed) for seed in range(count)]
    drain(engine, [Request(prompt, params, 0)])  # so that the prompt is cached, and the first token is proposed
    drain(engine, requests)
    scores = np.stack([llm.logits(prompt)[-1].numpy() for llm in models])
    p, q = scipy.special.softmax(scores.astype(float) / params.temperature, axis=-1)
    check_bounds(p, q)
    assert all(r.acceptance.drafted == [1] for r in requests)
    accepted = sum(r.acceptance.accepted[0] for r in requests)
    assert scipy.stats.binomtest(accepted, count, agreement(p, q)).pvalue > 1e-4
    firsts = np.bincount([r.output[0] for r in requests], minlength=11)
    assert scipy.stats.chisquare(firsts, p * count).pvalue > 1e-4
