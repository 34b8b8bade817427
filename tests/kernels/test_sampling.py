"""The definition of sampling against a slow one in Python's own numbers, and its draws against transformers."""

import math
import struct

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import transformers
from kernels.sampling_settings import KINDS, awkward_logits, mixed, row, rows

from genwright import rng
from genwright.kernels import sampling
from genwright.kernels.sampling import draw, gumbel, mass, uniform


def rounded(x: float) -> float:
    """The nearest float32. A sum or product of two float32 numbers in float64, then rounded, is rounded once."""
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def horner(f: float, coefficients: tuple[float, ...]) -> float:
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = rounded(rounded(total * f) + coefficient)
    return total


def slow_log(x: float) -> float:
    m, exponent = math.frexp(x)
    if m < struct.unpack("f", struct.pack("I", sampling.SQRT_HALF))[0]:
        m, exponent = 2 * m, exponent - 1
    f = m - 1
    p = rounded(rounded(horner(f, sampling.LOG) * rounded(f * f)) + f)
    return rounded(rounded(exponent * sampling.LN2) + p)


def slow_mass(y: float) -> int:
    t = min(rounded(-y * sampling.LOG2E), 63.0)
    f = t - int(t)
    p = rounded(rounded(horner(f, sampling.EXP2) * f) + 1)
    return (int(p * 2**24) << 8) >> int(t)


def slow_draw(logits: list[float], seed: int, sample: int, position: int, options: dict) -> int:
    """The rules of the module's docstring, one token after the other."""
    if any(math.isnan(x) for x in logits):
        return -1
    top = max(logits)
    temperature = options.get("temperature", 0)
    if temperature == 0 or math.isinf(top):
        return logits.index(top)
    inverse = rounded(1 / temperature)
    y = [rounded(rounded(x - top) * inverse) for x in logits]
    kth = sorted(logits)[-min(options.get("top_k") or len(logits), len(logits))]
    kept = [i for i, x in enumerate(logits) if x >= kth]
    top_p = rounded(options.get("top_p", 1))
    if top_p < 1:
        masses = {i: slow_mass(y[i]) for i in kept}
        total = sum(masses.values())
        larger = {i: sum(masses[j] for j in kept if logits[j] > logits[i]) for i in kept}
        kept = [i for i in kept if logits[i] == top or larger[i] < top_p * total]
    if options.get("min_p"):
        kept = [i for i in kept if y[i] >= rounded(math.log(options["min_p"]))]
    hashes = {
        i: rng.mix(rng.mix(torch.tensor([i], dtype=torch.int32)) ^ signed_key(seed, sample, position)) for i in kept
    }
    scores = {i: rounded(y[i] - slow_log(-slow_log(float(rng.uniform(hashes[i]))))) for i in kept}
    return min(kept, key=lambda i: (-scores[i], i))


def signed_key(*parts: int) -> torch.Tensor:
    return rng.key_tensor([rng.key(*parts, 0)])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_a_slow_implementation(kind):
    count, vocab = 60, 41
    logits = awkward_logits(kind, count, vocab, seed=1)
    options = [{}, *mixed(count - 1, seed=2)]
    got = draw(logits, rows(vocab, options)).tolist()
    want = [
        slow_draw(x, i << 30, i % 3, i, some) for i, (x, some) in enumerate(zip(logits.tolist(), options, strict=True))
    ]
    assert got == want


@pytest.mark.parametrize("kind", KINDS)
def test_shortcuts_for_large_vocabularies_change_nothing(kind):
    """The same rules over whole rows, without dropping early what cannot win."""
    vocab = 9001
    logits = awkward_logits(kind, 24, vocab, seed=3)
    options = [{"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9}, *mixed(22, seed=4)]
    settings = rows(vocab, options)
    assert draw(logits, settings).tolist() == [
        whole_row(x, setting.numpy()) for x, setting in zip(logits.numpy(), settings, strict=True)
    ]


def whole_row(x: np.ndarray, words: np.ndarray) -> int:
    numbers = words.view(np.float32)
    token = int(x.argmax())
    top = x[token]
    if not np.isfinite(top) or not numbers[2]:
        return -1 if np.isnan(top) else token
    with np.errstate(over="ignore"):
        y = (x - top) * numbers[2]
        mass_of_y = mass(y)
    order = np.argsort(-x, kind="stable")
    kept = x >= x[order[words[3] - 1]]
    if numbers[4] < 1:
        masses = np.where(kept, mass_of_y, 0)
        values, group = np.unique(-x, return_inverse=True)
        sums = np.zeros(len(values), np.int64)
        np.add.at(sums, group, masses)
        larger = (np.cumsum(sums) - sums)[group]
        kept &= (x == top) | (larger < float(numbers[4]) * float(masses.sum()))
    kept &= y >= numbers[5]
    keys = rng.extend(rng.extend(torch.from_numpy(words[0:1].copy()), torch.from_numpy(words[1:2].copy())), 0)
    u = rng.uniform(rng.mix(rng.mix(torch.arange(len(x), dtype=torch.int32)) ^ keys)).numpy()
    return int(np.where(kept, y + gumbel(u), -np.inf).argmax())


def test_noise_is_accurate_for_every_number():
    hashes = np.arange(1 << 23, dtype=np.uint32) << 9
    u = uniform(hashes)
    exact = -np.log(-np.log(u.astype(np.float64)))
    assert np.abs(gumbel(u) - exact).max() < 2e-6
    assert np.array_equal(u, rng.uniform(torch.from_numpy(hashes.view(np.int32))).numpy())
    # `draw` drops what numpy's logarithms say cannot win.
    assert np.abs(gumbel(u) + np.log(-np.log(u))).max() < 1e-5


def test_masses_are_accurate():
    y = np.concatenate([np.linspace(-22, 0, 100_001, dtype=np.float32), np.float32([-1e-40, -0.0])])
    wanted = np.exp(y.astype(np.float64)) * 2**32
    np.testing.assert_allclose(mass(y), wanted, rtol=1e-6, atol=1)
    assert mass(np.float32([0, -23, -1e30, -np.inf])).tolist() == [1 << 32, 0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.7},
    ],
    ids=str,
)
def test_draws_follow_the_distribution_of_transformers(options):
    count, vocab = 20_000, 37
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(3)) * 2
    scores = transformers.TemperatureLogitsWarper(options["temperature"])(None, logits)
    for name, warper in (
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ):
        if name in options:
            scores = warper(options[name])(None, scores)
    wanted = scipy.special.softmax(scores[0].double().numpy())
    settings = rows(vocab, [{**options, "seed": 5, "sample": i % 7, "position": i} for i in range(count)])
    drawn = np.bincount(draw(logits.expand(count, -1), settings), minlength=vocab)
    assert drawn[wanted == 0].sum() == 0
    often = wanted * count >= 5
    expected = np.append(wanted[often], max(1 - wanted[often].sum(), 1e-9)) * count
    got = np.append(drawn[often], drawn[~often].sum())
    assert scipy.stats.chisquare(got, expected * got.sum() / expected.sum()).pvalue > 0.001


def test_a_row_does_not_depend_on_the_others():
    options = mixed(40, seed=7)
    logits, settings = awkward_logits("ties", 40, 3000, seed=8), rows(3000, options)
    together = draw(logits, settings)
    assert together.tolist() == [int(draw(logits[i : i + 1], settings[i : i + 1])) for i in range(40)]


def test_ties_with_the_kth_largest_are_kept_and_greedy_takes_the_lowest_id():
    logits = torch.zeros(14, 40)
    logits[:, 20:] = 1
    tokens = draw(logits, rows(40, [{"temperature": 1.0, "top_k": 1}] * 12 + [{}] * 2)).tolist()
    assert min(tokens[:12]) >= 20 and len(set(tokens[:12])) > 3
    assert tokens[12:] == [20, 20]


def test_noise_is_a_hash_of_seed_sample_position_and_token():
    """Streams of different coordinates differ, and each is uniform."""
    logits = torch.zeros(1, 1000)

    def stream(seed: int, sample: int) -> tuple[int, ...]:
        made = [row(1000, temperature=1.0, seed=seed, sample=sample, position=i) for i in range(200)]
        return tuple(draw(logits.expand(200, -1), torch.tensor(made, dtype=torch.int32)).tolist())

    streams = [stream(seed, sample) for seed in (1, 2, 2**70, -5) for sample in range(3)]
    assert stream(1, 0) == streams[0] and len(set(streams)) == 12
    assert scipy.stats.kstest(np.concatenate(streams) / 1000, "uniform").pvalue > 0.001
