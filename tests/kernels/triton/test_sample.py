"""The sampling kernel against the torch sampler, which uses the same noise."""

import numpy as np
import pytest
import scipy.stats
import torch

from genwright import SamplingParams
from genwright.rng import key, key_tensor
from genwright.text.engine import sampler
from genwright.text.engine.request import Request

pytest.importorskip("triton")

from genwright.kernels.triton.sample import BLOCK, sample

OPTIONS = [
    {"temperature": 0.0, "top_k": 3, "min_p": 0.5},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 1},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.8, "top_k": 200},
    {"temperature": 1.0, "top_k": 1 << 24},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 2.0, "top_k": 50, "min_p": 0.2},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.5, "top_p": 0.9, "top_k": 12, "min_p": 0.05},
    {"temperature": 1e-4},
    {"temperature": 100.0, "top_k": 36},
]


def run(logits: torch.Tensor, requests, purpose=sampler.Purpose.SAMPLE) -> list[int]:
    def column(values, dtype):
        return torch.tensor(values, dtype=dtype, device=logits.device)

    params = [r.params for r in requests]
    return sample(
        logits,
        key_tensor([key(r.seed, r.sample) for r in requests], logits.device),
        column([len(r.tokens) for r in requests], torch.int64),
        column([p.temperature for p in params], torch.float32),
        column([min(p.top_k, logits.shape[1]) for p in params], torch.int32),
        column([p.top_p for p in params], torch.float32),
        column([p.min_p for p in params], torch.float32),
        purpose,
    ).tolist()


def requests_of(options: list[dict]):
    return [
        Request([1] * (1 + i), SamplingParams(**some), seed=i << 30, sample=i % 3) for i, some in enumerate(options)
    ]


@pytest.mark.parametrize("vocab", [37, 9001])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_tokens_are_the_reference_samplers(vocab, scale, device):
    requests = requests_of(OPTIONS)
    logits = torch.randn(len(requests), vocab, device=device) * scale
    assert run(logits, requests) == sampler.sample(logits, requests)
    drafts = [r for r in requests if r.params.temperature > 0][:2]
    got = sampler.choose(logits[:2], drafts, sampler.Purpose.DRAFT)[0]
    assert run(logits[:2], drafts, sampler.Purpose.DRAFT) == got


def test_a_row_is_read_again_if_one_lane_has_many_candidates(device):
    """A lane keeps three logits, and here more of the largest are in the same lane."""
    vocab = 5 * BLOCK + 17
    options = [{"temperature": 1.0, "top_k": k} for k in (4, 9, 3000, 3 * BLOCK + 1)] + [
        {"temperature": 5.0, "min_p": 0.1}
    ]
    requests = requests_of(options)
    logits = torch.randn(len(requests), vocab, device=device)
    logits[:, 5::BLOCK] += 9
    logits[:, 6::BLOCK] += 8
    assert run(logits, requests) == sampler.sample(logits, requests)


def test_ties_with_the_kth_largest_are_kept_and_greedy_takes_the_lowest_id(device):
    logits = torch.zeros(14, 40, device=device)
    logits[:, 20:] = 1
    some = requests_of([{"temperature": 1.0, "top_k": 1}] * 12 + [{"temperature": 0.0}] * 2)
    tokens = run(logits, some)
    assert min(tokens[:12]) >= 20 and len(set(tokens[:12])) > 3
    assert tokens[12:] == [20, 20]


def test_rows_with_nan_or_a_single_candidate(device):
    logits = torch.randn(6, 300, device=device)
    logits[0, 299], logits[1, 0] = float("nan"), float("nan")
    logits[2] = float("-inf")
    logits[3] = float("-inf")
    logits[3, 123] = -5
    logits[4, :] = float("-inf")
    logits[4, [7, 9]] = 1.0
    options = [{"temperature": t, "top_k": k} for t, k in ((1.0, 5), (0.0, 0), (0.0, 0), (1.0, 2), (1.0, 0), (1.0, 5))]
    tokens = run(logits, requests_of(options))
    assert tokens[:4] == [-1, -1, 0, 123]
    assert tokens[4] in (7, 9) and tokens[5] in logits[5].topk(5).indices


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 1.5, "top_k": 9},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0, "top_p": 0.7},
    ],
)
def test_draws_follow_the_distribution(options):
    logits = torch.randn(1, 37, generator=torch.Generator().manual_seed(3)).cuda()
    requests = [Request([1], SamplingParams(**options), seed) for seed in range(50_000)]
    drawn = np.bincount(run(logits.expand(50_000, -1), requests), minlength=37)
    filters = sampler.Filters.of(requests[:1], 37, logits.device)
    probabilities, ids = sampler.distribution(logits, filters)
    wanted = torch.zeros_like(logits).scatter_(1, ids, probabilities)[0].double().cpu().numpy()
    assert drawn[wanted == 0].sum() == 0
    wanted /= wanted.sum()
    often = wanted * 50_000 >= 5
    assert often.sum() > 1
    assert scipy.stats.chisquare(drawn[often], wanted[often] / wanted[often].sum() * drawn[often].sum()).pvalue > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [32_000, 128_256, 151_936, 50_257])
def test_real_vocabularies(vocab):
    """At most one of 256 rows may differ, because of rounding ties."""
    some = [
        {"temperature": 0.8, "top_k": 200},
        {"temperature": 1.0},
        {"temperature": 0.0},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 0.9, "top_p": 0.8},
    ]
    requests = requests_of([some[i % 5] for i in range(256)])
    logits = torch.randn(256, vocab, device="cuda") * 2
    pairs = zip(run(logits, requests), sampler.sample(logits, requests), strict=True)
    assert sum(ours != theirs for ours, theirs in pairs) <= 1
