"""The generators: their rows over ranks, batches and seeds."""

import pytest
import torch
import torch.distributed as dist

from genwright.errors import UserError
from genwright.images.sampling.per_sample_rng import Determ, DetermIndiv


@pytest.mark.parametrize(("name", "ours"), [("determ", Determ), ("determ-indiv", DetermIndiv)])
def test_noise_is_that_of_our_own_generators(name: str, ours) -> None:
    from cm.random_util import get_generator

    generator, expected = get_generator(name, 5, 7), ours(5, 7, torch.device("cpu"))
    for _ in range(2):
        assert torch.equal(generator.randn(3, 2, 4), expected.randn(3, 2, 4))
    assert torch.equal(generator.randn_like(torch.zeros(3, 2, 4)), expected.randn(3, 2, 4))
    assert generator.get_seed() == 7


@pytest.mark.parametrize("name", ["determ", "determ-indiv"])
def test_ranks_share_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cm.random_util import get_generator

    whole = get_generator(name, 6, 1)
    images, labels = whole.randn(6, 3), whole.randint(0, 1000, (6,))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        part = get_generator(name, 6, 1)
        assert torch.equal(part.randn(3, 3), images[rank::2])
        assert torch.equal(part.randint(0, 1000, (3,)), labels[rank::2])


def test_done_samples_are_left_out() -> None:
    from cm.random_util import get_generator

    for name in ("determ", "determ-indiv"):
        generator = get_generator(name, 6, 1)
        rows = generator.randn(6, 3)
        generator.set_seed(1)
        generator.set_done_samples(4)
        assert torch.equal(generator.randn(2, 3), rows[4:])


def test_dummy_is_torchs_own() -> None:
    from cm.random_util import get_generator

    torch.manual_seed(3)
    expected = torch.randn(2, 3), torch.randint(9, (2,)), torch.randn(2)
    torch.manual_seed(3)
    generator = get_generator("dummy")
    found = generator.randn(2, 3), generator.randint(9, (2,)), generator.randn_like(torch.zeros(2))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(UserError, match="There is no generator 'hash'"):
        get_generator("hash")
