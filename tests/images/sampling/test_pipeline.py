import numpy as np
import pytest
import torch
from images.tiny_unet import TINY

from genwright import ImageModel
from genwright.errors import UserError
from genwright.images.model.checkpoint import Description, draw_weights
from genwright.images.sampling import per_sample_rng as seeds
from genwright.images.sampling import schedules
from genwright.images.sampling.pipeline import SampleRun
from genwright.images.sampling.sampler_settings import SamplerSettings


@pytest.mark.parametrize("settings", [{"sampler": "heun", "s_churn": 2.0, "steps": 3}, {"sampler": "onestep"}])
def test_sample_17_of_seed_7_is_the_same_from_any_batch(tiny, settings):
    batches = [tiny.sample(18, seed=7, batch_size=size, **settings) for size in (1, 4, 16)]
    batches.append(tiny.sample(21, seed=7, **settings))
    assert len({batch.array[17].tobytes() for batch in batches}) == 1
    assert len({batch.labels[17] for batch in batches}) == 1
    assert len({image.tobytes() for image in batches[0].array}) == 18


def test_progress_counts_images(tiny):
    told = []
    tiny.sample(10, sampler="onestep", batch_size=4, progress=lambda *call: told.append(call))
    assert told == [(0, 10), (4, 10), (8, 10), (10, 10)]


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


def test_classes_have_names():
    unet = draw_weights(TINY, seed=0)
    names = ("Flags", "Food", "Travel", *"abcdefg")
    model = ImageModel((unet, Description(TINY, names)), device="cpu")
    for classes in (["flags", 2, "Food "], "Flags, 2,food", np.array([0, 2, 1]), [torch.tensor(0), "2", np.int32(1)]):
        assert model.sample(4, sampler="onestep", classes=classes).labels.tolist() == [0, 2, 1, 0]
    with pytest.raises(UserError, match="no class 'Cars'; this model's are Flags, Food"):
        model.sample(1, classes=["Cars"])


def test_steps_alone_mean_so_many_steps():
    """`--steps 4` of a model whose own sampler is multistep: the user never gave ts."""
    own = {"sampler": "multistep", "steps": 40, "ts": (0, 20, 39)}
    model = ImageModel((draw_weights(TINY, seed=0), Description(TINY, (), own)), device="cpu")

    def levels(**settings):
        seen = []
        model.sample(1, seed=1, callback=lambda step: seen.append(step.sigma), **settings)
        return seen

    assert levels() == levels(sampler="multistep") == levels(ts=(0, 20, 39), steps=40)
    assert levels(steps=4) == schedules.karras(5, 0.002, 80.0)[:-1]
    assert levels(steps=1) == [80.0]
    assert len(levels(steps=3, sampler="euler")) == 3


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
        ({"sampler": "huen"}, "sampler must be one of heun"),
        ({"schedule": "cosine"}, "schedule must be one of .* not 'cosine'"),
        ({"sampler": "euler", "ts": (0, 39)}, "ts is for the multistep sampler, not for euler"),
        ({"sampler": "multistep", "ts": (0, 39, 22)}, "ts must rise from 0 to steps - 1, which is 39, but is 0,39,22"),
        ({"steps": 0}, "steps must be a whole number between 1 and 100,000, not 0"),
        ({"sigma_min": 90.0}, "sigma_min must be below sigma_max, but 90.0 is not below 80.0"),
        ({"rho": -1.0}, "rho must be a number between 0.05 and 1,000.0, not -1.0"),
        ({"s_churn": -1.0}, "s_churn must be a number between 0"),
        ({"sigma_max": float("inf")}, "sigma_max must be a number between 1e-06 and 1,000,000.0, not inf"),
        ({"sigma_max": 0.0020000000000001, "steps": 90_000}, "too small to tell apart"),
        ({"seed": 2**64}, "seed must be a whole number between"),
        ({"seed": "x"}, "seed must be a whole number between .*, not 'x'"),
        ({"classes": [10]}, "A class label must be a whole number between 0 and 9, not 10"),
        ({"classes": [-1]}, "between 0 and 9"),
        ({"classes": ["Flags"]}, "no class 'Flags'; this model's are the numbers 0 to 9"),
        ({"classes": 3}, "classes must be a list of labels or names, not 3"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"generator": "mt"}, "generator must be one of hash, determ, determ-indiv, dummy"),
        ({"step": 3}, "no sampler setting step; did you mean steps?"),
    ],
)
def test_wrong_requests_are_one_sentence(tiny, settings, words):
    with pytest.raises(UserError, match=words):
        tiny.sample(2, **settings)


def test_wrong_models_are_one_sentence(tiny_file):
    for change, words in [
        ({"device": "gpu"}, "Device 'gpu' is unknown"),
        ({"device": "meta"}, "not supported; choose auto, cpu or cuda"),
        ({"dtype": "int8"}, "dtype must be one of .* not 'int8'"),
        ({"micro_batch": 0}, "micro_batch must be a whole number"),
    ]:
        with pytest.raises(UserError, match=words):
            ImageModel(str(tiny_file), config=TINY, **{"device": "cpu"} | change)
    with pytest.raises(UserError, match="does not describe its UNet's shape"):
        ImageModel(str(tiny_file), device="cpu")
    with pytest.raises(UserError, match=r"preset must be one of .* not 'imagenet'"):
        ImageModel(str(tiny_file), preset="imagenet", device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="No CUDA device"):
            ImageModel(str(tiny_file), config=TINY, device="cuda")
