"""The sampler's adjustments against formulas and transformers, what it keeps of a request, and that it never waits."""

import math

import numpy as np
import pytest
import scipy.special
import torch
import transformers

from genwright import SamplingParams
from genwright.kernels import sampling
from genwright.rng import key
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler

VOCAB = 37


def request(prompt: list[int], params: SamplingParams) -> Request:
    return Request(prompt, params, params.seed or 0)


def logits_of(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (rows, vocab)).astype(np.float32))


class Recorder(Sampler):
    """A sampler that keeps the logits and settings from which its tokens are drawn."""

    def __init__(self, vocab: int = VOCAB):
        super().__init__(vocab, torch.device("cpu"), fused=False)
        self.drawn_from = self.settings = torch.empty(0)
        self._draw = self._record

    def _record(self, logits: torch.Tensor, settings: torch.Tensor, allowed=None) -> torch.Tensor:
        self.drawn_from, self.settings = logits, settings
        return sampling.draw(logits, settings, allowed)


def sample_one(sampler: Sampler, logits: torch.Tensor, r, **others) -> int:
    return int(sampler.sample(logits, [r], [len(r.tokens)], **others))


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
    source = logits_of(2)
    want = source[0].double().numpy()
    for i in {1, 2, 7, 8}:
        want[i] = want[i] / 1.3 if want[i] > 0 else want[i] * 1.3
    for i, count in {7: 1, 8: 2}.items():
        want[i] -= 0.5 + 0.25 * count
    want[3] += 1.5
    want[30] = want[9] = -math.inf
    plain = request([1], SamplingParams())
    sampler, given = Recorder(), source.clone()
    sampler.sample(source, [r, plain], [7, 1])
    np.testing.assert_allclose(sampler.drawn_from[0].double().numpy(), want, atol=1e-5)
    assert torch.equal(sampler.drawn_from[1], source[1]), "other rows are untouched"
    assert torch.equal(source, given), "and so are the logits that were given"
    sampler.sample(source, [r, plain], [9, 1])
    assert sampler.drawn_from[0, 9] > -math.inf, "the minimum is reached"


def test_repetition_penalty_is_that_of_transformers():
    r = request([4, 5, 5, 30], SamplingParams(repetition_penalty=1.7))
    logits = logits_of(1)
    sampler = Recorder()
    sample_one(sampler, logits, r)
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.7)
    assert torch.equal(sampler.drawn_from, processor(torch.tensor([r.tokens]), logits.clone()))


PENALTIES = {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.7}


def test_sampled_tokens_are_counted_on_the_device():
    """A sampler that has seen all steps, and one that makes its state from the request's tokens."""
    kept, r = Recorder(), request([1, 2], SamplingParams(**PENALTIES, max_new_tokens=99))
    for step in range(30):
        logits = logits_of(1, step)
        token = sample_one(kept, logits, r)
        fresh = Recorder()
        assert sample_one(fresh, logits, r) == token
        assert torch.equal(kept.drawn_from, fresh.drawn_from)
        r.add(token)


def test_release_forgets_and_gives_rows_to_others():
    sampler = Recorder()
    params = SamplingParams(**PENALTIES, logit_bias={5: 9.0})
    requests = [request([i], params) for i in range(9)]
    for r in requests:
        sample_one(sampler, logits_of(1), r)
    for r in requests[:5]:
        sampler.release(r)
    sampler.release(request([1], params))  # which it never saw
    later = [request([i + 20], SamplingParams(**PENALTIES, logit_bias={6: -9.0})) for i in range(5)]
    for r in [*later, *requests]:
        logits, fresh = logits_of(1, 5), Recorder()
        sampler.release(r) if r in requests[5:] else None
        sample_one(sampler, logits, r)
        sample_one(fresh, logits, r)
        assert torch.equal(sampler.drawn_from, fresh.drawn_from)


def test_proposed_tokens_before_a_row_count_for_it_only():
    sampler, proposals = Recorder(), [3, 3, 8]
    r = request([1, 2], SamplingParams(**PENALTIES, max_new_tokens=99))
    logits = logits_of(4)
    before = torch.tensor([[-1, -1, -1], [3, -1, -1], [3, 3, -1], [3, 3, 8]])
    tokens = sampler.sample(logits, [r] * 4, [2, 3, 4, 5], before=before)
    adjusted = sampler.drawn_from
    for count in range(4):
        alone, longer = Recorder(), request([1, 2], r.params)
        for token in proposals[:count]:
            longer.add(token)
        assert sample_one(alone, logits[count : count + 1], longer) == tokens[count]
        assert torch.equal(alone.drawn_from[0], adjusted[count])
    # Nothing was counted; the accepted tokens are, when the engine says so.
    sampler.count(r, proposals[:2])
    for token in proposals[:2]:
        r.add(token)
    fresh = Recorder()
    sample_one(sampler, logits[:1], r)
    sample_one(fresh, logits[:1], r)
    assert torch.equal(sampler.drawn_from, fresh.drawn_from)


def test_a_nan_gives_minus_one_and_is_not_counted():
    sampler, params = (
        Recorder(),
        SamplingParams(**PENALTIES, min_new_tokens=9, stop_ids=(4,), logit_bias={4: -math.inf}),
    )
    r, plain = request([1, 2], params), request([1], SamplingParams())
    logits = logits_of(2)
    logits[0, 4] = math.nan  # at a token that is forbidden
    masks = np.full((1, 2), ~(1 << 4), np.int32), np.array([0, -1], np.int32)
    assert sampler.sample(logits, [r, plain], [2, 1], masks=masks)[0] == -1
    fresh = Recorder()
    for some in (sampler, fresh):
        sample_one(some, logits_of(1, 3), r)
    assert torch.equal(sampler.drawn_from, fresh.drawn_from)


def test_allowed_tokens():
    requests = [request([i], SamplingParams(temperature=5.0, seed=i)) for i in range(64)]
    bits = np.random.default_rng(0).random((64, 64)) < 0.2
    bits[:, VOCAB - 1] |= ~bits[:, :VOCAB].any(axis=1)
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    mask_of = np.where(np.arange(64) % 4, np.arange(64)[::-1], -1).astype(np.int32)
    tokens = Recorder().sample(logits_of(64), requests, [1] * 64, masks=(masks, mask_of)).numpy()
    free = mask_of < 0
    assert bits[mask_of, tokens][~free].all() and len(set(tokens.tolist())) > 10
    assert (tokens == Recorder().sample(logits_of(64), requests, [1] * 64).numpy())[free].all()


def test_a_request_is_not_changed_by_its_neighbours():
    params = [
        SamplingParams(temperature=0.9),
        SamplingParams(**PENALTIES),
        SamplingParams(temperature=1.0, logit_bias={3: 4.0}),
        SamplingParams(temperature=1.0, min_new_tokens=3, stop_ids=(1, 2)),
        SamplingParams(),
    ]
    requests = [request([i + 1] * 3, p) for i, p in enumerate(params * 3)]
    logits = logits_of(len(requests))
    together = Recorder()
    tokens = together.sample(logits, requests, [3] * len(requests))
    for i, r in enumerate(requests):
        alone = Recorder()
        assert sample_one(alone, logits[i : i + 1], r) == tokens[i]
        assert torch.equal(alone.drawn_from[0], together.drawn_from[i])


def test_settings_say_what_the_parameters_do():
    params = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.1)
    r = request([1] * 6, params)
    r.seed, r.sample = 1 << 40, 3
    sampler = Recorder(vocab=100)
    sample_one(sampler, logits_of(1, vocab=100), r)
    words, numbers = sampler.settings[0].tolist(), sampler.settings[0].view(torch.float32).tolist()
    assert words[sampling.KEY] & 0xFFFFFFFF == key(1 << 40, 3) and words[sampling.POSITION] == 6
    assert words[sampling.TOP_K] == 50
    assert numbers[sampling.INVERSE_TEMPERATURE] == np.float32(1.25)
    assert numbers[sampling.TOP_P] == np.float32(0.9) and numbers[sampling.LOG_MIN_P] == np.float32(math.log(0.1))


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"logit_bias": {3: 1e30}}], ids=str
)
@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-300])
def test_the_coldest_temperatures_are_greedy(options, temperature):
    logits, sampler = logits_of(1), Recorder()
    greedy = sample_one(sampler, logits, request([1], SamplingParams(**options)))
    assert sample_one(sampler, logits, request([1], SamplingParams(temperature=temperature, **options))) == greedy


def test_logprobs_are_the_models_own():
    logits = logits_of(3, 7)
    picked, values, ids = Recorder().logprobs(logits, torch.tensor([3, 5, -1]), 4)
    for row, token in enumerate((3, 5)):
        want = scipy.special.log_softmax(logits[row].double().numpy())
        assert float(picked[row]) == pytest.approx(want[token], abs=1e-5)
        assert ids[row].tolist() == np.argsort(-want)[:4].tolist()
        assert values[row].tolist() == pytest.approx(sorted(want)[-4:][::-1], abs=1e-5)


def test_no_more_alternatives_than_tokens():
    assert Recorder().logprobs(torch.zeros(1, VOCAB), torch.tensor([3]), 1000)[2].shape == (1, VOCAB)


@pytest.mark.gpu
def test_a_gpu_gives_the_tokens_of_the_definition_and_nothing_waits():
    vocab, device = 50_257, torch.device("cuda")
    params = [
        SamplingParams(temperature=0.9, top_k=50, top_p=0.9, max_new_tokens=99),
        SamplingParams(**PENALTIES, logit_bias={3: 4.0, 77: -math.inf}, max_new_tokens=99),
        SamplingParams(temperature=1.0, min_new_tokens=3, stop_ids=(1, 2), max_new_tokens=99),
        SamplingParams(max_new_tokens=99),
    ]
    fused, exact = Sampler(vocab, device, fused=True), Sampler(vocab, torch.device("cpu"), fused=False)
    requests = [request([i + 1] * 3, p) for i, p in enumerate(params * 4)]
    for step in range(6):
        logits = logits_of(16, step, vocab)
        on_gpu = logits.cuda()
        masks = None
        if step == 2:
            masks = np.full((1, (vocab + 31) // 32), -2, np.int32), np.arange(16, dtype=np.int32) % 2 - 1
        before = torch.tensor([[5, 5, -1]] * 16, device=device) if step == 3 else None
        positions = [len(r.tokens) for r in requests]
        if step:  # the first compiles the kernel
            torch.cuda.set_sync_debug_mode("error")
        try:
            tokens = fused.sample(on_gpu, requests, positions, before, masks)
            fused.logprobs(on_gpu, tokens, 5)
            fused.count(requests[1], [])
            fused.release(requests[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        want = exact.sample(logits, requests, positions, None if before is None else before.cpu(), masks).tolist()
        assert tokens.tolist() == want
        for sampler in (fused, exact):
            if step == 3:
                for r, token in zip(requests, want, strict=True):
                    sampler.count(r, [token])
        for r, token in zip(requests, want, strict=True):
            r.add(token)
