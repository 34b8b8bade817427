"""KarrasDenoiser's losses written once more image by image, its scalings, and the samplers' own arguments."""

import math

import numpy as np
import pytest
import torch

from genwright.errors import UserError

X0 = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


def network(weight):
    """A network that depends on x, t and labels, smoothly, and on one weight."""
    return lambda x, t, y=None: (
        weight * x + 0.01 * t.view(-1, 1, 1, 1).sin() + (0 if y is None else 0.1 * y.view(-1, 1, 1, 1))
    )


def new(**settings):
    from cm.karras_diffusion import KarrasDenoiser

    return KarrasDenoiser(**{"loss_norm": "l2"} | settings)


def denoise(weight, x, sigma, consistency=False, y=0.0):
    """D(x, sigma) in float64, of one image."""
    c_in, data = 1 / math.sqrt(sigma**2 + 0.25), 0.25
    c_skip, c_out = data / (sigma**2 + data), sigma * 0.5 * c_in
    if consistency:
        c_skip, c_out = data / ((sigma - 0.002) ** 2 + data), (sigma - 0.002) * 0.5 * c_in
    return c_skip * x + c_out * (weight * c_in * x + 0.01 * math.sin(250 * math.log(sigma)) + 0.1 * y)


def levels(indices, scales):
    return [(80 ** (1 / 7) + i / scales * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in indices]


def test_the_scalings_meet_their_boundary() -> None:
    sigma = torch.tensor([0.002, 1.0, 80.0])
    c_skip, c_out, _ = new().get_scalings_for_boundary_condition(sigma)
    assert (c_skip[0], c_out[0]) == (1, 0)
    c_skip, c_out, c_in = new().get_scalings(sigma)
    torch.testing.assert_close(c_skip, 0.25 / (sigma**2 + 0.25))
    torch.testing.assert_close(c_out, sigma * 0.5 * c_in)


def test_edm_loss() -> None:
    sigmas, noise = torch.tensor([0.1, 1.0, 10.0]), torch.randn(X0.shape, generator=torch.Generator().manual_seed(1))
    terms = new().training_losses(network(0.3), X0, sigmas, {"y": torch.tensor([0, 1, 2])}, noise)
    for i, sigma in enumerate(sigmas.tolist()):
        x = X0[i].double().numpy()
        error = np.mean((denoise(0.3, x + sigma * noise[i].double().numpy(), sigma, y=i) - x) ** 2)
        assert terms["xs_mse"][i].item() == pytest.approx(error, rel=1e-4)
        assert terms["loss"][i].item() == terms["mse"][i].item() == pytest.approx(error * (sigma**-2 + 4), rel=1e-4)


@pytest.mark.parametrize("mode", ["distillation", "training", "progdist"])
def test_losses_of_distillation(mode: str) -> None:
    noise = torch.randn(X0.shape, generator=torch.Generator().manual_seed(1))
    diffusion = new(distillation=mode != "progdist", weight_schedule="snr+1")
    teacher = {"teacher_model": network(0.5), "teacher_diffusion": new()}
    torch.manual_seed(2)
    if mode == "progdist":
        loss = diffusion.progdist_losses(network(0.3), X0, 4, noise=noise, **teacher)["loss"]
    else:
        given = teacher if mode == "distillation" else {}
        loss = diffusion.consistency_losses(network(0.3), X0, 5, noise=noise, target_model=network(0.4), **given)[
            "loss"
        ]
    torch.manual_seed(2)
    for i, index in enumerate(torch.randint(0, 4, (3,)).tolist()):
        x0, n = X0[i].double().numpy(), noise[i].double().numpy()
        t, m, r = levels((index, index + 0.5, index + 1), 4)
        x = x0 + t * n
        slope = (x - denoise(0.5, x, t)) / t
        if mode == "progdist":
            middle = x + (m - t) * slope
            end = middle + (r - m) * (middle - denoise(0.5, middle, m)) / m
            # The student's Euler step x + (r - t) (x - goal) / t has to end there.
            goal, student = x - t * (end - x) / (r - t), denoise(0.3, x, t)
        else:
            lower = x0 + r * n
            if mode == "distillation":
                euler = x + (r - t) * slope
                lower = x + (r - t) * (slope + (euler - denoise(0.5, euler, r)) / r) / 2
            goal, student = denoise(0.4, lower, r, True), denoise(0.3, x, t, True)
        assert loss[i].item() == pytest.approx((t**-2 + 1) * np.mean((student - goal) ** 2), rel=2e-4)


def test_student_and_target_drop_the_same() -> None:
    drops = []

    def dropping(x, t):
        drops.append(torch.nn.functional.dropout(torch.ones_like(x), 0.5))
        return x * drops[-1]

    new(distillation=True).consistency_losses(dropping, X0, 5, target_model=dropping)
    assert len(drops) == 2 and torch.equal(*drops)


def test_samplers_take_the_originals_arguments() -> None:
    from cm import karras_diffusion as kd
    from cm.random_util import get_generator

    def denoiser(x, sigma):
        return x / (1 + sigma.view(-1, 1, 1, 1))

    sigmas = kd.get_sigmas_karras(4, 0.002, 80.0)
    assert len(sigmas) == 5 and sigmas[-1] == 0
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 80
    seen = []
    found = kd.sample_heun(denoiser, x, sigmas, get_generator("dummy"), callback=seen.append, progress=True)
    assert [call["i"] for call in seen] == [0, 1, 2, 3] and {"x", "sigma", "sigma_hat", "denoised"} <= seen[0].keys()
    d = kd.to_d(x, torch.tensor(80.0), denoiser(x, sigmas[:1]))
    euler = x + d * (sigmas[1] - 80)
    heun = x + (d + (euler - denoiser(euler, sigmas[1:2])) / sigmas[1]) * (sigmas[1] - 80) / 2
    torch.testing.assert_close(seen[1]["x"], heun, rtol=1e-4, atol=1e-4)
    assert found.shape == x.shape
    # As ternary_search calls it, with the time steps in the place of sigmas.
    options = {"t_min": 0.002, "t_max": 80.0, "steps": 5}
    first = kd.stochastic_iterative_sampler(denoiser, x, (0, 2, 4), get_generator("determ", 2, 1), **options)
    again = kd.stochastic_iterative_sampler(denoiser, x, sigmas, get_generator("determ", 2, 1), ts=(0, 2, 4), **options)
    assert torch.equal(first, again)
    (level,) = levels((2,), 4)
    noise = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    renoised = denoiser(x, torch.tensor([80.0])) + noise * math.sqrt(level**2 - 0.002**2)
    torch.testing.assert_close(first, denoiser(renoised, torch.tensor([level])), rtol=1e-4, atol=1e-5)


def test_midpoint_steps_follow_a_derivative() -> None:
    """dx/dt = 2 t x, at times that are not those of the steps' ends."""
    from cm.karras_diffusion import sample_midpoint_ancestral

    times, seen = [0.1, 0.4, 0.7, 0.8], []
    found = sample_midpoint_ancestral(
        lambda x, t: 2 * t.view(-1, 1, 1, 1) * x, X0, torch.tensor(times), None, True, seen.append
    )
    expected = X0.double().numpy()
    for t in times:
        expected = expected + 0.25 * 2 * (t + 0.125) * (expected + 0.125 * 2 * t * expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert [call["tn"] for call in seen] == torch.tensor(times).tolist() and {"x", "dn", "dn_2"} <= seen[0].keys()


def test_an_ancestral_step_adds_noise_up_to_the_next_level() -> None:
    from cm.karras_diffusion import get_ancestral_step

    down, up = get_ancestral_step(3.0, 2.0)
    assert down**2 + up**2 == pytest.approx(4) and up**2 == pytest.approx(4 * (9 - 4) / 9)


def test_edits_keep_the_known_part() -> None:
    from cm import karras_diffusion as kd
    from cm.random_util import get_generator

    generator = torch.Generator().manual_seed(0)
    images, x = (
        torch.rand(2, 3, 16, 16, generator=generator) * 2 - 1,
        torch.randn(2, 3, 16, 16, generator=generator) * 80,
    )
    luma = torch.nn.functional.normalize(torch.tensor([0.2989, 0.5870, 0.1140]), dim=0)
    found, gray = kd.iterative_colorization(
        lambda x, t: x / 80, images, x, (0, 20, 39), generator=get_generator("dummy")
    )
    for image in (found, gray):
        torch.testing.assert_close(torch.einsum("nchw,c->nhw", image, luma), torch.einsum("nchw,c->nhw", images, luma))
    found, small = kd.iterative_superres(lambda x, t: x / 80, images, x, (0, 20, 39), generator=get_generator("dummy"))
    for image in (found, small):
        torch.testing.assert_close(torch.nn.functional.avg_pool2d(image, 8), torch.nn.functional.avg_pool2d(images, 8))
    with pytest.raises(UserError, match=r"arial\.ttf|a multiple of 7"):
        kd.iterative_inpainting(lambda x, t: x / 80, images, x, (0, 39))


def test_mistakes_are_one_sentence() -> None:
    for settings in ({"weight_schedule": "none"}, {"loss_norm": "l3"}):
        with pytest.raises(UserError, match="must be"):
            new(**settings)
    with pytest.raises(UserError, match="needs a target_model"):
        new().consistency_losses(network(1), X0, 4)
    with pytest.raises(UserError, match="needs a teacher"):
        new().progdist_losses(network(1), X0, 4)
    with pytest.raises(UserError, match="choose --schedule_sampler lognormal"):
        new().training_losses(network(1), X0, torch.tensor([1, 2, 3]))
