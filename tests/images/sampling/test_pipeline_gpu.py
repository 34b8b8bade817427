"""Sampling on a GPU: independence of the batch, and no waiting for the device."""

import pytest
import torch
from images.tiny_unet import TINY

from genwright.images.sampling.pipeline import ImageModel, SampleRun
from genwright.images.sampling.sampler_settings import SamplerSettings
from genwright.images.sampling.samplers import heun

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("sampler", ["onestep", "heun"])
def test_sample_17_of_seed_7_is_the_same_from_any_batch(tiny_file, sampler):
    model = ImageModel(str(tiny_file), config=TINY, device="cuda")
    steps = {"sampler": sampler, "steps": 4, "seed": 7}
    batches = [model.sample(18, batch_size=size, **steps) for size in (1, 4, 16)] + [model.sample(100, **steps)]
    assert len({batch.array[17].tobytes() for batch in batches}) == 1


def test_no_step_waits_for_the_device(tiny_file):
    model = ImageModel(str(tiny_file), config=TINY, device="cuda")
    settings = SamplerSettings(sampler="heun", steps=4, s_churn=2.0)
    run = SampleRun(model, settings, 8, seed=7)
    run(0, 8)  # compiles and captures
    indices = torch.arange(8, device="cuda")
    denoise, noise = model.denoise(settings, run.labels(indices), 0), run.noise(indices)
    torch.cuda.set_sync_debug_mode("error")
    try:
        heun(denoise, noise() * 80, settings.sigmas, noise, settings.churn, lambda step: None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
