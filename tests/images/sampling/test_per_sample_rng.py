import pytest
import scipy.stats
import torch

from genwright.errors import UserError
from genwright.images.sampling import per_sample_rng

CPU = torch.device("cpu")


def words(*values):
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's known answers for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert tuple(word.item() for word in per_sample_rng.philox(words(*counter), key)) == expected


def test_an_image_knows_only_its_own_number():
    alone = per_sample_rng.hash_normal(7, torch.tensor([17]), 3, (3, 5, 5))
    among = per_sample_rng.hash_normal(7, torch.arange(40), 3, (3, 5, 5))
    assert torch.equal(alone[0], among[17])
    for other in (
        per_sample_rng.hash_normal(8, torch.tensor([17]), 3, (3, 5, 5)),
        per_sample_rng.hash_normal(7, torch.tensor([18]), 3, (3, 5, 5)),
        per_sample_rng.hash_normal(7, torch.tensor([17]), 4, (3, 5, 5)),
        per_sample_rng.hash_normal(7 + 2**32, torch.tensor([17]), 3, (3, 5, 5)),
    ):
        assert not torch.isclose(alone, other).any()


def test_noise_is_standard_normal_and_labels_are_uniform():
    noise = per_sample_rng.hash_normal(1, torch.arange(50), 0, (3, 32, 32)).flatten().numpy()
    assert scipy.stats.kstest(noise[::7], "norm").pvalue > 1e-3
    labels = per_sample_rng.hash_labels(1, torch.arange(20_000), 10)
    assert labels.min() == 0 and labels.max() == 9
    assert scipy.stats.chisquare(labels.bincount().numpy()).pvalue > 1e-3


def test_determ_is_one_stream_for_all_images():
    determ = per_sample_rng.Determ(6, seed=42, device=CPU)
    rng = torch.Generator().manual_seed(42)
    for _ in range(2):  # the original never moves on from the first rows; the stream does
        assert torch.equal(determ.randn(4, 3), torch.randn(6, 3, generator=rng)[:4])
    ranks = [per_sample_rng.Determ(6, 42, CPU, rank, 2).randn(3, 3) for rank in (0, 1)]
    full = per_sample_rng.Determ(6, 42, CPU).randn(6, 3)
    assert torch.equal(ranks[0], full[0::2]) and torch.equal(ranks[1], full[1::2])


def test_determ_indiv_is_a_stream_per_image():
    indiv = per_sample_rng.DetermIndiv(5, seed=3, device=CPU)
    streams = [torch.Generator().manual_seed(i + 5 * 3) for i in range(5)]
    for rows in (range(4), range(4)):
        expected = torch.cat([torch.randn(1, 2, generator=streams[i]) for i in rows])
        assert torch.equal(indiv.randn(4, 2), expected)
    # Past the last image, the original repeats it, and its stream goes on.
    assert torch.equal(per_sample_rng.DetermIndiv(2, 0, CPU).randn(3, 2)[0], torch.randn(2, generator=_seeded(0)))


def test_dummy_is_torchs_own_stream():
    torch.manual_seed(0)
    expected = torch.randn(2, 3)
    torch.manual_seed(0)
    assert torch.equal(per_sample_rng.Dummy(2, 0, CPU).randn(2, 3), expected)


def test_seeds_that_do_not_fit_are_one_sentence():
    with pytest.raises(UserError, match="determ-indiv must be below"):
        per_sample_rng.DetermIndiv(4, 2**62, CPU)


def _seeded(seed):
    return torch.Generator().manual_seed(seed)
