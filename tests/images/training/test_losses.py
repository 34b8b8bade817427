import numpy as np
import pytest
import torch

from genwright.errors import UserError
from genwright.images.training import losses

torch.manual_seed(0)
N, SHAPE = 5, (3, 4, 4)
X0, NOISE = torch.randn(2, N, *SHAPE, dtype=torch.float64)
T = torch.tensor([0.1, 0.5, 1.0, 5.0, 60.0], dtype=torch.float64)
R = T * torch.tensor([0.9, 0.5, 0.1, 0.7, 0.99], dtype=torch.float64)
X_T = X0 + T.view(-1, 1, 1, 1) * NOISE
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.float64)


def toy(w, b=0.3):
    """D(x, sigma) = w x / (1 + sigma) + b sigma / (1 + sigma): smooth, and with one weight whose gradient is known."""
    return lambda x, sigma: (w * x + b * sigma.view(-1, 1, 1, 1)) / (1 + sigma.view(-1, 1, 1, 1))


def toy_numpy(w, b=0.3):
    return lambda x, sigma: (w * x + b * sigma[:, None, None, None]) / (1 + sigma[:, None, None, None])


def numpy_loss(method, w, norm, h=0.0):
    """Each method written once more, image by image in numpy; `h` moves the student's weight and nothing else."""
    x0, noise, t, r, weight = (tensor.numpy() for tensor in (X0, NOISE, T, R, WEIGHT))
    student, target, teacher = toy_numpy(w + h), toy_numpy(w), toy_numpy(0.7, -0.2)
    total = []
    for i in range(N):
        one = slice(i, i + 1)
        x_t = x0[one] + t[i] * noise[one]
        if method == "edm":
            goal = x0[one]
        elif method == "consistency":
            goal = target(x0[one] + r[i] * noise[one], r[one])
        else:
            slope = (x_t - teacher(x_t, t[one])) / t[i]
            if method == "distillation":
                euler = x_t + (r[i] - t[i]) * slope
                slope_r = (euler - teacher(euler, r[one])) / r[i]
                goal = target(x_t + (r[i] - t[i]) * (slope + slope_r) / 2, r[one])
            else:
                m = np.sqrt(t[one] * r[one])
                x_m = x_t + (m - t[i]) * slope
                x_r = x_m + (r[i] - m) * (x_m - teacher(x_m, m)) / m
                # The Euler step x + (r - t) (x - goal) / t has to end at x_r.
                goal = x_t - t[i] * (x_r - x_t) / (r[i] - t[i])
        d = student(x_t, t[one]) - goal
        c = 0.00054 * np.sqrt(d.size)
        value = {"l1": np.abs(d).mean(), "l2": (d**2).mean(), "pseudo-huber": np.sqrt((d**2).sum() + c**2) - c}[norm]
        total.append(weight[i] * value)
    return np.array(total)


@pytest.mark.parametrize("norm", ["l1", "l2", "pseudo-huber"])
@pytest.mark.parametrize("method", ["edm", "consistency", "distillation", "progressive"])
def test_loss_and_gradient_are_the_papers(method, norm):
    if method == "edm" and norm != "l2":
        return  # EDM has no other
    w = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    student, teacher, distance = toy(w), toy(0.7, -0.2), losses.loss_norm(norm)
    if method == "edm":
        loss = losses.edm(student, X0, NOISE, T, WEIGHT)
    elif method == "consistency":
        loss = losses.consistency(student, student, X_T, X0 + R.view(-1, 1, 1, 1) * NOISE, T, R, WEIGHT, distance)
    elif method == "distillation":
        step = losses.heun_step(teacher, X_T, T, R)
        loss = losses.consistency(student, student, X_T, step, T, R, WEIGHT, distance)
    else:
        loss = losses.progressive(student, teacher, X0, NOISE, (T, (T * R).sqrt(), R), WEIGHT, distance)
    np.testing.assert_allclose(loss.detach(), numpy_loss(method, 0.8, norm), rtol=1e-12)
    loss.sum().backward()
    h = 1e-7  # small enough that no difference changes its sign, where l1 has a kink
    numerical = (numpy_loss(method, 0.8, norm, h) - numpy_loss(method, 0.8, norm, -h)).sum() / (2 * h)
    assert w.grad.item() == pytest.approx(numerical, rel=1e-6)


def test_matching_pushes_samples_to_where_the_data_is():
    """Two Gaussians of variance v, whose perfect denoisers are known: the gradient of each image, written once more."""
    v, data, samples = 0.25, 0.4, -0.3
    sample = (X0 * v**0.5 + samples).requires_grad_()
    sigma = T.view(-1, 1, 1, 1)
    noisy = sample.detach() + sigma * NOISE
    real, fake = ((v * noisy + sigma**2 * mean) / (v + sigma**2) for mean in (data, samples))
    losses.distribution_matching(sample, real, fake).sum().backward()
    for i in range(N):
        t = T[i].item()
        push = t**2 / (v + t**2) * (samples - data)  # downhill is towards the data
        scale = np.abs(sample[i].detach().numpy() - real[i].numpy()).mean() * sample[i].numel()
        np.testing.assert_allclose(sample.grad[i], np.full(SHAPE, push / scale), rtol=1e-9)


def test_l2_32_shrinks_first():
    a, b = torch.randn(2, 2, 3, 64, 64)
    means = [torch.nn.functional.avg_pool2d(x, 2) for x in (a, b)]  # what bilinear halving is
    torch.testing.assert_close(losses.l2_32(a, b), losses.l2(*means))


def test_wrong_norms_are_one_sentence():
    with pytest.raises(UserError, match=r"loss_norm must be one of .* not 'l3'"):
        losses.loss_norm("l3")
    with pytest.raises(UserError, match="needs the weights of its network"):
        losses.loss_norm("lpips")
