"""Schedule samplers: weights, and noise levels."""

from types import SimpleNamespace

import numpy as np
import torch
from scipy.stats import norm

DIFFUSION = SimpleNamespace(num_timesteps=4)


def test_uniform_steps_have_the_weight_1() -> None:
    from cm.resample import create_named_schedule_sampler

    steps, weights = create_named_schedule_sampler("uniform", DIFFUSION).sample(1000, "cpu")
    assert set(steps.tolist()) == {0, 1, 2, 3} and steps.dtype == torch.int64
    assert torch.equal(weights, torch.ones(1000))


def test_steps_with_large_losses_are_drawn_more_often(ranks) -> None:
    from cm.resample import create_named_schedule_sampler

    sampler = create_named_schedule_sampler("loss-second-moment", DIFFUSION)
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0])
    sampler.update_with_local_losses(torch.arange(4), torch.full((4,), 100.0))
    assert np.array_equal(sampler.weights(), np.ones(4))  # until each step has ten losses
    for _ in range(10):
        sampler.update_with_local_losses(torch.arange(4), losses)
    expected = np.array([1, 2, 3, 4]) / 10 * 0.999 + 0.001 / 4
    np.testing.assert_allclose(sampler.weights(), expected)
    steps, weights = sampler.sample(4000, "cpu")
    np.testing.assert_allclose(np.bincount(steps) / 4000, expected, atol=0.03)
    np.testing.assert_allclose(weights, 1 / (4 * expected[steps]), rtol=1e-6)


def test_log_normal_levels(ranks) -> None:
    from cm.resample import LogNormalSampler

    for even in (False, True):
        sigmas, weights = LogNormalSampler(even=even).sample(1000, "cpu")
        assert torch.equal(weights, torch.ones(1000))
        logs = (sigmas.log() + 1.2) / 1.2
        assert abs(logs.mean()) < 0.1 and abs(logs.std() - 1) < 0.1
        if even:  # one in each of a thousand parts
            assert np.array_equal(np.floor(norm.cdf(logs.double()) * 1000).astype(int), np.arange(1000))
