import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from diffusers import CMStochasticIterativeScheduler, EDMDPMSolverMultistepScheduler

from genwright.images.model.denoiser import Denoiser
from genwright.images.sampling import schedules
from genwright.images.sampling.per_sample_rng import Noise
from genwright.images.sampling.samplers import SAMPLERS, Churn

SHAPE = (2, 3, 4, 4)
SIGMAS = [*schedules.karras(6, 0.01, 10.0), 0.0]


def denoise(x, sigma):
    return torch.tanh(x / (1 + sigma)) * 0.9


def noise_of(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Noise(lambda draw: torch.randn(SHAPE, generator=generator, dtype=dtype), stateful=True)


def start(dtype=torch.float64):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=dtype) * SIGMAS[0]


def sample(method, denoise, x, sigmas, noise, churn=None, callback=lambda step: None):
    return SAMPLERS[method](denoise, x, sigmas, noise, churn or Churn(), callback)


def slope(x, sigma):
    """dx/dsigma of the probability flow, in float64 numpy."""
    return (x - np.tanh(x / (1 + sigma)) * 0.9) / sigma


def rederive(method, x, draws, churn):
    """The published update formulas, step by step, in float64 numpy."""
    steps = len(SIGMAS) - 1
    for i in range(steps):
        s, t = SIGMAS[i], SIGMAS[i + 1]
        if method == "euler":
            x = x + (t - s) * slope(x, s)
            continue
        if method == "ancestral":
            up = (t**2 * (s**2 - t**2) / s**2) ** 0.5
            x = x + ((t**2 - up**2) ** 0.5 - s) * slope(x, s) + up * draws[i]
            continue
        gamma = min(churn.s_churn / steps, 2**0.5 - 1) if churn.s_tmin <= s <= churn.s_tmax else 0.0
        hat = s + gamma * s
        x = x + (hat**2 - s**2) ** 0.5 * churn.s_noise * draws[i]
        d = slope(x, hat)
        if method == "heun":
            following = x + (t - hat) * d
            x = following if t == 0 else x + (t - hat) * (d + slope(following, t)) / 2
        else:
            mid = ((hat ** (1 / 3) + t ** (1 / 3)) / 2) ** 3
            x = x + (t - hat) * slope(x + (mid - hat) * d, mid)
    return x


@pytest.mark.parametrize("method", ["heun", "euler", "dpm", "ancestral"])
@pytest.mark.parametrize("churn", [Churn(), Churn(s_churn=3.0, s_tmin=0.05, s_tmax=5.0, s_noise=1.007)])
def test_equals_the_formulas_in_float64(method, churn):
    draws = noise_of()
    expected = rederive(method, start().numpy(), [draws().numpy() for _ in SIGMAS], churn)
    out = sample(method, denoise, start(), SIGMAS, noise_of(), churn)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-12)


def network(x, t, labels):
    return torch.tanh(2 * x) * 0.5 + t.view(-1, 1, 1, 1) / 2000


@pytest.mark.parametrize("ts", [None, (0, 22, 39), (0, 5, 17, 30, 39)])
def test_consistency_samplers_equal_diffusers(ts):
    scheduler = CMStochasticIterativeScheduler(num_train_timesteps=40)
    if ts is None:
        scheduler.set_timesteps(1)
        sampler, sigmas = "onestep", schedules.karras(40, 0.002, 80.0)
    else:
        scheduler.set_timesteps(timesteps=list(ts[-2::-1]))
        sampler, sigmas = "multistep", schedules.multistep(ts, 40, 0.002, 80.0)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)) * 80
    denoiser = Denoiser(network, consistency=True)
    noise = noise_of(5, torch.float32)
    out = sample(sampler, lambda x, s: denoiser(x, x.new_full((2,), s)).clamp(-1, 1), x, sigmas, noise)

    generator = torch.Generator().manual_seed(5)
    for t in scheduler.timesteps:
        output = network(scheduler.scale_model_input(x, t), t.float().expand(2), None)
        x = scheduler.step(output, t, x, generator=generator).prev_sample
    torch.testing.assert_close(out, x, rtol=1e-5, atol=1e-5)


def test_dpmpp_2m_equals_diffusers():
    scheduler = EDMDPMSolverMultistepScheduler(sigma_min=0.01, sigma_max=10.0, lower_order_final=False)
    scheduler.set_timesteps(12)
    denoiser = Denoiser(network, sigma_min=0.01)
    x = start(torch.float32)
    sigmas = [*schedules.karras(12, 0.01, 10.0), 0.0]
    out = sample("dpmpp-2m", lambda x, s: denoiser(x, x.new_full((2,), s)), x, sigmas, noise_of())
    for i, t in enumerate(scheduler.timesteps):
        output = network(scheduler.scale_model_input(x, t), (250 * scheduler.sigmas[i].log()).expand(2), None)
        x = scheduler.step(output, t, x).prev_sample
    torch.testing.assert_close(out, x, rtol=1e-4, atol=1e-4)


def test_progdist_takes_euler_steps_to_sigma_min():
    sigmas = schedules.karras(7, 0.01, 10.0)
    out = sample("progdist", denoise, start(), sigmas, noise_of())
    x = start().numpy()
    for s, t in pairwise(sigmas):
        x = x + (t - s) * slope(x, s)
    np.testing.assert_allclose(out.numpy(), x, rtol=1e-12)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun", 2), ("dpm", 2), ("dpmpp-2m", 2)])
def test_order_on_a_gaussian(method, order):
    # For data ~ N(0, s^2), D(x, sigma) = x s^2 / (s^2 + sigma^2), and x / sqrt(s^2 + sigma^2) stays along the flow.
    s, high, low = 0.7, 20.0, 0.05
    x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    exact = math.sqrt((s**2 + low**2) / (s**2 + high**2))

    def error(steps):
        sigmas = schedules.karras(steps + 1, low, high)
        out = sample(method, lambda x, sigma: x * s**2 / (s**2 + sigma**2), x, sigmas, noise_of())
        return abs(out.item() / exact - 1)

    errors = [error(steps) for steps in (64, 128, 256)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("method", [method for method in SAMPLERS if method != "onestep"])
def test_lands_on_the_data(method):
    """With the exact denoiser of four images, every sampler ends on one of them."""
    images = torch.randn(4, *SHAPE[1:], generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def posterior_mean(x, sigma):
        distances = ((x[:, None] - images) ** 2).flatten(2).sum(dim=2)
        return torch.einsum("nk,kchw->nchw", (-distances / (2 * sigma**2)).softmax(dim=1), images)

    sigmas = schedules.karras(20, 0.002, 80.0) + ([] if method in ("multistep", "progdist") else [0.0])
    x = sample(method, posterior_mean, start() * 8, sigmas, noise_of())
    assert ((x[:, None] - images) ** 2).flatten(2).mean(dim=2).min(dim=1).values.max() < 1e-4


@pytest.mark.parametrize("method", SAMPLERS)
def test_callback_sees_every_step(method):
    steps = []
    sample(method, denoise, start(), SIGMAS, noise_of(), callback=steps.append)
    assert [step.index for step in steps] == list(range(1 if method == "onestep" else len(SIGMAS) - 1))
    assert [step.sigma for step in steps] == SIGMAS[: len(steps)]
    assert all(step.x.shape == step.denoised.shape == SHAPE for step in steps)


def test_churn_draws_are_skipped_as_the_original_draws_them():
    # The original draws in every step of heun and dpm, used or not, so a later batch starts at the same noise.
    quiet, churned = noise_of(), noise_of()
    sample("heun", denoise, start(), SIGMAS, quiet)
    sample("heun", denoise, start(), SIGMAS, churned, Churn(s_churn=3.0))
    torch.testing.assert_close(quiet(), churned(), rtol=0, atol=0)
