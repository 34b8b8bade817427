import pytest
import torch

from genwright.errors import UserError
from genwright.images.model.denoiser import WEIGHTINGS, Denoiser, loss_weight


def network(x, t, labels):
    return torch.tanh(x) + t.view(-1, 1, 1, 1) / 1000


@pytest.mark.parametrize("consistency", [False, True])
def test_preconditioning_is_the_papers(consistency):
    x, sigma = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.tensor([0.5, 30.0], dtype=torch.float64)
    out = Denoiser(network, consistency=consistency)(x, sigma)
    for n, s in enumerate(sigma.tolist()):
        eps = 0.002 if consistency else 0.0
        c_skip = 0.25 / ((s - eps) ** 2 + 0.25)
        c_out = (s - eps) * 0.5 / (s * s + 0.25) ** 0.5
        inner = torch.tanh(x[n] / (s * s + 0.25) ** 0.5) + 250 * torch.log(sigma[n]) / 1000
        torch.testing.assert_close(out[n], c_skip * x[n] + c_out * inner)


def test_consistency_model_is_the_identity_at_sigma_min():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    out = Denoiser(network, sigma_min=0.002, consistency=True)(x, torch.full((2,), 0.002, dtype=torch.float64))
    torch.testing.assert_close(out, x)


def test_weightings():
    sigma = torch.tensor([0.5, 2.0])
    expected = {
        "snr": [4, 0.25],
        "snr+1": [5, 1.25],
        "karras": [8, 4.25],
        "truncated-snr": [4, 1],
        "uniform": [1, 1],
    }
    assert set(WEIGHTINGS) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(loss_weight(name, sigma), torch.tensor(values, dtype=torch.float32))
    with pytest.raises(UserError, match="weighting must be one of snr"):
        loss_weight("snr2", sigma)
