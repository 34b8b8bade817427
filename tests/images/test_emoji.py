"""The model in the box; what its samples are worth is measured by benchmarks/emoji.py."""

import os
import time

import numpy as np
import pytest
import torch

from genwright import ImageModel
from genwright.images.model.checkpoint import BOXED
from genwright.images.training.training_settings import ONE_STEP, TWO_STEPS

FULL = bool(os.environ.get("GENWRIGHT_FULL_SIZE"))


@pytest.fixture(scope="module")
def emoji():
    return ImageModel("emoji", device="cpu")


def test_files_are_small():
    sizes = [path.stat().st_size for path in BOXED["emoji"].glob("*.safetensors")]
    assert sum(sizes) <= 25e6 and max(sizes) < 16 * 2**20


def test_it_is_sampled_in_two_steps(emoji):
    assert emoji.description.label_names[2] == "Flags" and emoji.num_classes == 9
    own = emoji.sample(1, seed=3, classes=[2])
    assert np.array_equal(own.array, emoji.sample(1, seed=3, classes=[2], **TWO_STEPS).array)
    # A flag: white above and below, as every one of the data's, and colour between.
    image = own.array[0].astype(int)
    assert image[:2].min() > 200 and image[-2:].min() > 200 and image[8:24].min(axis=2).mean() < 200


def test_samples_vary(emoji):
    images = emoji.sample(4, seed=1, classes=[6], **ONE_STEP).array.astype(float)
    apart = np.sqrt(((images[:, None] - images[None]) ** 2).mean(axis=(2, 3, 4)))
    assert apart[~np.eye(4, dtype=bool)].min() > 10


def test_smileys_are_yellow_and_flags_are_not(emoji):
    def yellow(name):
        label = emoji.description.label_names.index(name)
        middle = emoji.sample(8, seed=2, classes=[label]).array[:, 4:28, 4:28].astype(int)
        red, green, blue = middle.mean(axis=(1, 2)).T
        return int(((red > 170) & (green > 130) & (blue < green - 40)).sum())

    assert yellow("Smileys & Emotion") >= 4 and yellow("Flags") <= 2


@pytest.mark.skipif(not FULL, reason="a timing, which other tests would disturb")
def test_64_one_step_samples_take_seconds(emoji):
    torch.set_num_threads(2)
    started = time.perf_counter()
    assert emoji.sample(64, seed=1, **ONE_STEP).array.shape == (64, 32, 32, 3)
    assert time.perf_counter() - started < 10
