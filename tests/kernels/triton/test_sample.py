"""The sampling kernel against its definition: equal bits and equal tokens."""

import numpy as np
import pytest
import scipy.stats
import torch
from kernels.sampling_settings import KINDS, awkward_logits, mixed, rows

from genwright.kernels import sampling

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from genwright.kernels.triton import sample as kernel  # noqa: E402
from genwright.kernels.triton.sample import BLOCK, sample  # noqa: E402


def check(logits: torch.Tensor, options: list[dict], free: bool = False) -> None:
    """Compare with masks, and `free` or on a GPU also without them; some rows have no mask anyway."""
    settings = rows(logits.shape[1], options, str(logits.device))
    masks = allowed(*logits.shape, seed=len(options)).to(logits.device)
    mask_of = torch.arange(len(logits), dtype=torch.int32, device=logits.device) % (len(masks) + 1) - 1
    for some in (sampling.Allowed(masks, mask_of), *([None] if free or logits.is_cuda else [])):
        assert sample(logits, settings, some).tolist() == sampling.draw(logits.float(), settings, some).tolist()


def allowed(count: int, vocab: int, seed: int) -> torch.Tensor:
    """Masks that allow no token, one, some and most."""
    rng, shares = np.random.default_rng(seed), np.array([[0], [0.5 / vocab], [0.01], [0.3], [0.999]])
    bits = rng.random((5, (vocab + 31) // 32 * 32)) < shares
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [37, 9001])
def test_tokens_are_the_definitions(kind, vocab, device):
    count = 48 if device == "cuda" else 10
    check(awkward_logits(kind, count, vocab, seed=1).to(device), [{"temperature": 0.8}, *mixed(count - 1, seed=vocab)])


def test_a_row_is_read_again_if_one_lane_has_many_candidates(device):
    """A lane keeps three tokens, and here more of the best are in the same lane."""
    vocab = 5 * BLOCK + 17
    options = [{"temperature": 1.0, "top_k": k} for k in (4, 9, 3000, 3 * BLOCK + 1)]
    options += [{"temperature": 5.0, "min_p": 0.1}, {"temperature": 1.0, "top_k": 9, "top_p": 0.9}]
    options += [{"temperature": 1.0, "top_p": p} for p in (0.1, 0.9)]
    logits = torch.randn(len(options), vocab, generator=torch.Generator().manual_seed(0))
    logits[:, 5::BLOCK] += 9
    logits[:, 6::BLOCK] += 8
    check(logits.to(device), options)


def test_rows_of_a_wider_matrix(device):
    wide = awkward_logits("plain", 6, 400, seed=2).to(device)
    options = mixed(6, seed=3)
    check(wide[:, 100:300], options, free=True)
    check(wide[:1, :200].expand(6, -1), options, free=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bits(dtype, device):
    for vocab in (200, BLOCK + 9):
        check(awkward_logits("plain", 6, vocab, seed=4).to(device, dtype), mixed(6, seed=vocab), free=True)


@triton.jit
def _parts(x, hashes, scores, masses, top, inverse, count, BLOCK: tl.constexpr):
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + ids, ids < count, 0.0)
    u = ((tl.load(hashes + ids, ids < count, 0).to(tl.uint32) >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    y = (value - top) * inverse
    tl.store(scores + ids, y - kernel._log(-kernel._log(u)), ids < count)
    tl.store(masses + ids, kernel._mass(y), ids < count)


def test_scores_and_masses_have_the_same_bits(device):
    count = 1 << 23 if device == "cuda" else 1 << 18
    x = -np.random.default_rng(0).exponential(8, count).astype(np.float32)
    hashes = np.linspace(0, (1 << 32) - 1, count).astype(np.uint32)
    top, inverse = np.float32(0.3), np.float32(1 / 0.7)
    scores = torch.empty(count, device=device)
    masses = torch.empty(count, dtype=torch.int64, device=device)
    grid = (triton.cdiv(count, 1024),)
    inputs = torch.from_numpy(x).to(device), torch.from_numpy(hashes.view(np.int32)).to(device)
    _parts[grid](*inputs, scores, masses, float(top), float(inverse), count, BLOCK=1024, enable_fp_fusion=False)
    y = (x - top) * inverse
    wanted = y + sampling.gumbel(sampling.uniform(hashes))
    assert np.array_equal(scores.cpu().numpy().view(np.int32), wanted.view(np.int32))
    assert np.array_equal(masses.cpu().numpy(), sampling.mass(y))


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 50},
    {"temperature": 0.8, "top_k": 2000},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 2000, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.02},
]


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [32_000, 128_256, 151_936, 50_257])
@pytest.mark.parametrize("scale", [0.02, 2.0, 6.0])
def test_every_token_of_real_vocabularies(vocab, scale):
    options = [{**SETTINGS[i % len(SETTINGS)], "position": 100 + i} for i in range(256)]
    check(torch.randn(256, vocab, device="cuda") * scale, options)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [some for some in SETTINGS if some["temperature"]], ids=str)
def test_draws_follow_the_distribution(options):
    """One token of each of 50,000 positions, against the frequencies of its definition at other positions."""
    logits = (torch.randn(1, 37, generator=torch.Generator().manual_seed(3)) * 2).expand(50_000, -1)
    ours = rows(37, [{**options, "seed": 1, "position": i} for i in range(50_000)], "cuda")
    theirs = rows(37, [{**options, "seed": 2, "position": i} for i in range(50_000)])
    table = np.stack(
        [
            np.bincount(sample(logits.cuda(), ours).cpu(), minlength=37),
            np.bincount(sampling.draw(logits, theirs), minlength=37),
        ]
    )
    table = table[:, table.sum(axis=0) >= 10]
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-3
