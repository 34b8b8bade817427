"""Every sampling option against a formula written out here, and the draws against their distribution."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from text.engine.setup import request

from genwright import SamplingParams
from genwright.rng import key, mix, uniform
from genwright.text.engine.sampler import Filters, Purpose, adjust, distribution, draw, logprobs, sample

VOCAB = 37


def logits_row(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, VOCAB)


def expected(logits: np.ndarray, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Probabilities by definition, one token after the other, in float64."""
    weights = {i: math.exp(x / temperature) for i, x in enumerate(logits)}
    order = sorted(weights, key=lambda i: -weights[i])
    kept = order[: top_k or VOCAB]
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if mass < top_p or not nucleus:
            nucleus.append(i)
        mass += weights[i] / total
    best = max(weights[i] for i in nucleus)
    nucleus = [i for i in nucleus if weights[i] >= min_p * best]
    total = sum(weights[i] for i in nucleus)
    return np.array([weights[i] / total if i in nucleus else 0.0 for i in range(VOCAB)])


OPTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.7, "min_p": 0.05},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("beside", [None, {"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0}], ids=str)
def test_filters_give_the_defined_distribution(options, beside):
    """Alone, beside a row that needs sorting, and beside one that keeps all tokens."""
    rows = [request([1], SamplingParams(**options))] + ([request([1], SamplingParams(**beside))] if beside else [])
    logits = torch.tensor(np.stack([logits_row(i) for i in range(len(rows))]), dtype=torch.float32)
    probabilities, ids = distribution(logits, Filters.of(rows, VOCAB, logits.device))
    dense = torch.zeros(VOCAB).scatter_(0, ids[0], probabilities[0]).double().numpy()
    np.testing.assert_allclose(dense, expected(logits_row(), **options), atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"logit_bias": {3: 1e30}}], ids=str
)
@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-300])
def test_the_coldest_temperatures_are_greedy(options, temperature):
    logits = torch.tensor(logits_row(), dtype=torch.float32)[None]
    greedy = sample(logits, [request([1], SamplingParams(**options))])
    assert sample(logits, [request([1], SamplingParams(temperature=temperature, seed=1, **options))]) == greedy


def test_no_more_alternatives_than_tokens():
    assert len(logprobs(torch.zeros(1, VOCAB), [3], 1000)[0].top) == VOCAB


def test_penalties_bias_and_minimum_length_by_their_formulas():
    params = SamplingParams(
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={3: 1.5, 30: -math.inf},
        min_new_tokens=5,
        stop_ids=(9,),
    )
    r = request([1, 2, 7, 7], params)
    for token in (7, 8, 8):
        r.add(token)
    logits = logits_row(1)
    want = logits.copy()
    for i in {1, 2, 7, 8}:
        want[i] = want[i] / 1.3 if want[i] > 0 else want[i] * 1.3
    for i, count in {7: 1, 8: 2}.items():
        want[i] -= 0.5 + 0.25 * count
    want[3] += 1.5
    want[30] = want[9] = -math.inf
    plain = request([1], SamplingParams())
    source = torch.tensor(np.stack([logits, logits]), dtype=torch.float32)
    got = adjust(source, [r, plain])
    np.testing.assert_allclose(got[0].double().numpy(), want, atol=1e-5)
    assert torch.equal(got[1], source[1]), "other rows are untouched"
    for token in (8, 8):
        r.add(token)
    assert adjust(source, [r, plain])[0, 9] > -math.inf, "the minimum is reached"


def test_greedy_takes_the_likeliest_and_nan_is_told():
    logits = torch.tensor(np.stack([logits_row(2), logits_row(3)]), dtype=torch.float32)
    requests = [request([1], SamplingParams()), request([1], SamplingParams(temperature=1.0))]
    assert sample(logits, requests)[0] == int(logits[0].argmax())
    logits[1, 4] = math.nan
    tokens = sample(logits, requests)
    assert (tokens[0], tokens[1]) == (int(logits[0].argmax()), None)


def test_fifty_thousand_draws_match_the_distribution():
    count = 50_000
    options = {"temperature": 1.2, "top_k": 20, "top_p": 0.95, "min_p": 0.01}
    want = expected(logits_row(5), **options)
    requests = []
    for position in range(count // 10):
        for seed in range(10):
            r = request([0] * (position % 500 + 1), SamplingParams(**options))
            r.seed, r.sample = seed, position // 500
            requests.append(r)
    logits = torch.tensor(logits_row(5), dtype=torch.float32).expand(count, VOCAB)
    got = np.bincount(sample(logits, requests), minlength=VOCAB)
    assert got[want == 0].sum() == 0
    statistic = scipy.stats.chisquare(got[want > 0], want[want > 0] * count)
    assert statistic.pvalue > 0.001


def test_noise_is_uniform_and_purposes_are_independent():
    ids = torch.arange(200_000)[None]
    noises = {}
    for purpose in Purpose:
        column = torch.tensor([key(3, 0, 17, purpose)]).to(torch.int32)[:, None]
        noises[purpose] = uniform(mix(mix(ids.to(torch.int32)) ^ column))[0].double().numpy()
        assert scipy.stats.kstest(noises[purpose], "uniform").pvalue > 0.001
    table = np.corrcoef(list(noises.values()))
    assert np.abs(table - np.eye(len(Purpose))).max() < 0.01


def test_the_hash_is_lowbias32_on_every_integer_width():
    """Against a numpy version in uint32, which cannot depend on how torch overflows."""
    values = np.random.default_rng(0).integers(0, 1 << 32, 10_000, dtype=np.uint32)
    x = values.copy()
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x ^= x >> np.uint32(shift)
        x = x * np.uint32(factor)
    got = mix(torch.from_numpy(values.view(np.int32).copy())).numpy().view(np.uint32)
    assert (got == x).all()
    assert key(5, 9) != key(9, 5)


def test_a_draw_does_not_depend_on_the_batch():
    params = [SamplingParams(temperature=1.0, top_k=k, top_p=p) for k, p in ((0, 1.0), (5, 1.0), (0, 0.7), (9, 0.4))]
    requests = [request([1] * (i + 1), p) for i, p in enumerate(params * 5)]
    logits = torch.tensor(np.stack([logits_row(i) for i in range(len(requests))]), dtype=torch.float32)
    together = sample(logits, requests)
    assert together == [sample(logits[i : i + 1], [r])[0] for i, r in enumerate(requests)]


def test_samples_differ_and_seeds_repeat():
    probabilities = torch.full((1, VOCAB), 1 / VOCAB)
    ids = torch.arange(VOCAB)[None]

    def stream(seed: int, sample_index: int) -> list[int]:
        tokens = []
        r = request([1], SamplingParams(temperature=1.0, max_new_tokens=99))
        r.seed, r.sample = seed, sample_index
        for _ in range(30):
            tokens.append(int(draw(probabilities, ids, [r], Purpose.SAMPLE)))
            r.add(tokens[-1])
        return tokens

    assert stream(1, 0) == stream(1, 0)
    assert len({tuple(stream(seed, j)) for seed in (1, 2, 2**70, -5) for j in range(3)}) == 12


def test_logprobs_are_the_models_own():
    logits = torch.tensor(np.stack([logits_row(7), logits_row(8)]), dtype=torch.float32)
    got = logprobs(logits, [3, 5], 4)
    for row, (entry, token) in enumerate(zip(got, (3, 5), strict=True)):
        want = scipy.special.log_softmax(logits_row(7 + row))
        assert entry.id == token
        assert entry.logprob == pytest.approx(want[token], abs=1e-5)
        assert list(entry.top) == np.argsort(-want)[:4].tolist()
        assert list(entry.top.values()) == pytest.approx(sorted(want)[-4:][::-1], abs=1e-5)
