import numpy as np
import pytest
import torch
from diffusers import EDMEulerScheduler

from genwright.errors import UserError
from genwright.images.sampling import schedules


@pytest.mark.parametrize("kind", ["karras", "exponential"])
def test_equal_diffusers(kind):
    scheduler = EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0, sigma_schedule=kind, rho=7.0)
    scheduler.set_timesteps(18)
    sigmas = getattr(schedules, kind)(18, 0.002, 80.0)
    torch.testing.assert_close(torch.tensor([*sigmas, 0.0]), scheduler.sigmas, rtol=2e-5, atol=0)


def test_vp_is_the_integral_of_beta():
    for sigma, t in zip(schedules.vp(9), np.linspace(1, 1e-3, 9), strict=True):
        times = np.linspace(0, t, 20_001)
        integral = np.trapezoid(0.1 + 19.9 * times, times)  # of beta(t) = beta_min + beta_d t
        assert sigma == pytest.approx(np.sqrt(np.exp(integral) - 1), rel=1e-6)


def test_multistep_points_lie_on_the_karras_schedule():
    levels = schedules.karras(40, 0.002, 80.0)
    assert schedules.multistep((0, 22, 39), 40, 0.002, 80.0) == pytest.approx([levels[0], levels[22], levels[39]])


@pytest.mark.parametrize("ts", [(), (0,), (0, 39, 22), (22, 39), (0, 22), (0, 22, 22, 39), (-1, 39), (0, 40)])
def test_ts_out_of_order_is_one_sentence(ts):
    with pytest.raises(UserError, match="ts must rise from 0 to steps - 1, which is 39"):
        schedules.multistep(ts, 40, 0.002, 80.0)
