"""The model in the box: that it is what its card says, by a judge that is stored with the tests."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from genwright import ImageModel
from genwright.images.checkpoint import BOXED
from genwright.images.judge import Judge, balanced_accuracy
from genwright.images.train import ONE_STEP

FULL = bool(os.environ.get("GENWRIGHT_FULL_SIZE"))
JUDGE = Path(__file__).parent / "data" / "emoji_judge.safetensors"
# The stored judge's balanced accuracy on held-out emoji, and what samples must reach of it (issue 8).
ACCURACY, SHARE = 0.0, 0.85


@pytest.fixture(scope="module")
def emoji():
    return ImageModel("emoji", device="cpu")


def test_files_are_small():
    sizes = [path.stat().st_size for path in BOXED["emoji"].glob("*.safetensors")]
    assert sum(sizes) <= 25e6 and max(sizes) < 16 * 2**20


def test_two_steps_are_of_the_asked_category(emoji):
    judge = Judge(9)
    judge.load_state_dict({name: tensor.float() for name, tensor in load_file(JUDGE).items()})
    batch = emoji.sample(9 * (40 if FULL else 4), seed=3, classes=list(range(9)))  # its own sampler: two steps
    agreement = balanced_accuracy(judge.eval().look(batch.array)[1], batch.labels)
    assert agreement >= SHARE * ACCURACY
    shifted = np.roll(batch.labels, 1)  # what the judge would say of samples of other categories
    assert balanced_accuracy(judge.look(batch.array)[1], shifted) < SHARE * ACCURACY / 2


def test_samples_vary(emoji):
    images = emoji.sample(9, seed=1, classes=[6], **ONE_STEP).array.astype(float)
    apart = np.sqrt(((images[:, None] - images[None]) ** 2).mean(axis=(2, 3, 4)))
    assert apart[~np.eye(9, dtype=bool)].min() > 10


@pytest.mark.skipif(not FULL, reason="a timing, which other tests would disturb")
def test_64_one_step_samples_take_seconds(emoji):
    torch.set_num_threads(2)
    started = time.perf_counter()
    assert emoji.sample(64, seed=1, **ONE_STEP).array.shape == (64, 32, 32, 3)
    assert time.perf_counter() - started < 10
