import numpy as np
import pytest
import torch

from genwright import ImageModel
from genwright.errors import UserError
from genwright.images import seeds
from genwright.images.pipeline import SamplerSettings, SampleRun

from .conftest import TINY


@pytest.mark.parametrize("settings", [{"sampler": "heun", "s_churn": 2.0, "steps": 3}, {"sampler": "onestep"}])
def test_sample_17_of_seed_7_is_the_same_from_any_batch(tiny, settings):
    batches = [tiny.sample(18, seed=7, batch_size=size, **settings) for size in (1, 4, 16)]
    batches.append(tiny.sample(21, seed=7, **settings))
    assert len({batch.array[17].tobytes() for batch in batches}) == 1
    assert len({batch.labels[17] for batch in batches}) == 1
    assert len({image.tobytes() for image in batches[0].array}) == 18


def test_sampling_follows_its_parts(tiny):
    """Noise, labels, preconditioning, onestep and uint8, put together by hand."""
    batch = tiny.sample(4, seed=3, sampler="onestep", steps=None)
    indices = torch.arange(4)
    x = seeds.hash_normal(3, indices, 0, (3, 16, 16)).double() * 80
    labels = seeds.hash_labels(3, indices, 10)
    sigma, sigma_min = 80.0, 0.002
    c_skip, c_out = 0.25 / ((sigma - sigma_min) ** 2 + 0.25), (sigma - sigma_min) * 0.5 / (sigma**2 + 0.25) ** 0.5
    t = torch.full((4,), 250 * np.log(sigma))
    with torch.no_grad():
        output = tiny.runner.unet((x / (sigma**2 + 0.25) ** 0.5).float(), t, labels)
    expected = ((c_skip * x + c_out * output).clamp(-1, 1) + 1) * 127.5
    assert np.abs(batch.array - expected.permute(0, 2, 3, 1).numpy()).max() <= 1.001  # rounded down
    assert batch.array.dtype == np.uint8 and batch.array.shape == (4, 16, 16, 3)
    assert np.array_equal(batch.labels, labels.numpy())


def test_classes_come_in_turn(tiny):
    assert tiny.sample(5, seed=1, sampler="onestep", classes=[3, 9]).labels.tolist() == [3, 9, 3, 9, 3]


def test_a_seed_is_drawn_and_reported(tiny):
    first = tiny.sample(1, sampler="onestep")
    again = tiny.sample(1, sampler="onestep", seed=first.seed)
    assert np.array_equal(first.array, again.array)


def test_original_generators_draw_for_batches(tiny):
    draws = []
    run = SampleRun(tiny, SamplerSettings(sampler="heun", steps=2), 3, seed=5, generator="determ")
    for first in (0, 2):
        run(first, 2, lambda step: draws.append(step.x) if step.index == 0 else None)
    rng = torch.Generator().manual_seed(5)
    for x in draws:  # each batch draws its start and, used or not, one tensor per step
        start, *_ = [torch.randn(3, 3, 16, 16, generator=rng) for _ in range(3)]
        torch.testing.assert_close(x, start[:2] * 80)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("first", [0, 2, 7])
def test_runner_gives_every_image_its_own_row(tiny, count, first):
    x, t = torch.randn(count, 3, 16, 16), torch.linspace(-100, 900, count)
    labels = torch.arange(count) % 10
    out = tiny.runner(x, t, labels, first)
    with torch.no_grad():
        torch.testing.assert_close(out, tiny.runner.unet(x, t, labels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": "huen"}, "no sampler 'huen'; choose one of heun"),
        ({"schedule": "cosine"}, "no schedule 'cosine'"),
        ({"sampler": "multistep"}, "multistep sampler, and no other, takes ts"),
        ({"sampler": "multistep", "ts": (0, 39, 22)}, "ts must rise from 0 to steps - 1, which is 39, but is 0,39,22"),
        ({"steps": 0}, "one step or more"),
        ({"sigma_min": 90.0}, "must rise from above 0"),
        ({"rho": -1.0}, "rho must be positive"),
        ({"s_churn": -1.0}, "s_churn must not be negative"),
        ({"sigma_max": float("inf")}, "must rise from above 0"),
        ({"seed": 2**64}, "a number of 64 bits"),
        ({"classes": [10]}, "Class 10 is out of range: this model's labels are 0 to 9"),
        ({"classes": [-1]}, "out of range"),
        ({"batch_size": 0}, "one image or more"),
        ({"generator": "mt"}, "no generator"),
    ],
)
def test_wrong_requests_are_one_sentence(tiny, settings, words):
    with pytest.raises(UserError, match=words):
        tiny.sample(2, **settings)


def test_wrong_models_are_one_sentence(tiny_file):
    for change, words in [
        ({"device": "gpu"}, "no device 'gpu'"),
        ({"device": "meta"}, "cpu or cuda"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"micro_batch": 0}, "one image or more"),
    ]:
        with pytest.raises(UserError, match=words):
            ImageModel(str(tiny_file), config=TINY, **{"device": "cpu"} | change)
    with pytest.raises(UserError, match="does not say its UNet's shape"):
        ImageModel(str(tiny_file), device="cpu")
    with pytest.raises(UserError, match="no preset 'imagenet'"):
        ImageModel(str(tiny_file), preset="imagenet", device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            ImageModel(str(tiny_file), config=TINY, device="cuda")
