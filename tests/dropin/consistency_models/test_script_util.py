"""Schedules of consistency training, and models from flags."""

import numpy as np
import pytest

from genwright.errors import UserError


def schedule(target_ema_mode="fixed", scale_mode="fixed", start_ema=0.95, start_scales=2, end_scales=200, total=100):
    from cm.script_util import create_ema_and_scales_fn

    return create_ema_and_scales_fn(target_ema_mode, start_ema, scale_mode, start_scales, end_scales, total, 10)


def test_fixed_schedules() -> None:
    assert [schedule(start_scales=40)(step) for step in (0, 99)] == [(0.95, 40)] * 2


def test_progressive_schedules_are_the_papers() -> None:
    """Song et al. (2023), appendix C."""
    for step in range(0, 101, 10):
        levels = np.ceil(np.sqrt(step / 100 * (201**2 - 2**2) + 2**2) - 1)
        ema, scales = schedule("adaptive", "progressive")(step)
        assert scales == max(levels, 1) + 1
        assert ema == pytest.approx(np.exp(2 * np.log(0.95) / max(levels, 1)))
        assert schedule("fixed", "progressive", start_ema=0.0)(step) == (0.0, scales)
        assert schedule("adaptive", "progressive", start_ema=0.0)(step) == (0.0, scales)


def test_progressive_distillation_halves_the_steps() -> None:
    found = [schedule(scale_mode="progdist", start_scales=16)(step)[1] for step in range(0, 80, 10)]
    assert found == [16, 8, 4, 2, 2, 1, 1, 1]  # the stage of two is twice as long
    assert schedule(scale_mode="progdist", start_scales=16)(0)[0] == 1.0


def test_schedules_that_do_not_exist_are_one_sentence() -> None:
    with pytest.raises(UserError, match="--target_ema_mode adaptive and --scale_mode progdist do not go together"):
        schedule("adaptive", "progdist")


@pytest.mark.parametrize(("size", "levels"), [(64, 4), (128, 5), (256, 6), (512, 7)])
def test_the_image_size_gives_the_channels(size: int, levels: int) -> None:
    import torch

    from cm.script_util import create_model

    with torch.device("meta"):
        assert len(create_model(size, 64, 1).config.channel_mult) == levels
