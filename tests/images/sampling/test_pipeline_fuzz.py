"""Whatever is passed to ImageModel.sample and .edit, it gives images or says in one sentence what is wrong."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from images.tiny_unet import TINY

from genwright import ImageModel
from genwright.errors import UserError
from genwright.images.model.checkpoint import Description, draw_weights
from genwright.images.model.clusters import Clusters

ODD = [None, True, -1, 0, 1, 2, 1.5, "x", "", "2", b"x", math.nan, math.inf, -math.inf, 1e-300, 1e300, 10**30, [], [1]]
ODD += [(0, 1), {}, {"a": 1}, object(), Path("x"), np.int64(2), np.float32(0.5), np.array([1, 2]), torch.tensor(2)]
ODD += [torch.zeros(2, 2), 1j, "heun\nx" * 50, "\ud800", range(3), print, [[1]], [None], ["Flags"], 2**63]
SETTINGS = {
    "sampler": ["heun", "euler", "dpm", "ancestral", "dpmpp-2m", "onestep", "multistep", "progdist", None],
    "steps": [1, 2, 3, np.int32(2), None],
    "ts": [(0, 1), [0, 1, 2], (0, 2), None, (), (1, 0), "0,1", (0, 1.5), ("0", "1")],
    "schedule": ["karras", "exponential", "vp"],
    "sigma_min": [0.002, 1e-6, 1],
    "sigma_max": [80, 80.0, 1e6, 0.01],
    "rho": [7, 1, 0.05, 1000],
    "s_churn": [0, 1, 80, math.inf],
    "s_tmin": [0, 0.5],
    "s_tmax": [50, math.inf],
    "s_noise": [1, 1.007],
    "clip_denoised": [True, False],
    "consistency": [None, True, False],
    "stesp": [3],
}
SAMPLE = {
    "num_samples": [1, 2, np.int64(1)],
    "seed": [None, 0, -5, 2**63 - 1, np.int64(3)],
    "classes": [None, [], [1], ["b", 0], "a,c", "A", np.array([2]), (0,), ["z"], [9], {"a"}],
    "batch_size": [None, 1, 5],
    "generator": ["hash", "determ", "determ-indiv", "dummy"],
}
SMALL = torch.zeros(1, 3, 16, 16)
EDIT = {
    "num_samples": SAMPLE["num_samples"],
    "seed": SAMPLE["seed"],
    "classes": SAMPLE["classes"],
    "image": [
        SMALL,
        SMALL.double(),
        SMALL.half(),
        SMALL[:, :, :8, :8],
        SMALL[:, :, :0],
        SMALL + 2,
        SMALL / 0,
        SMALL[0],
    ],
    "task": ["colorize", "superres", "colorize", "inpaint"],
    "mask": [
        None,
        torch.ones(16, 16),
        torch.zeros(16, 16).bool(),
        torch.ones(16, 16).byte(),
        torch.full((16, 16), 0.5),
    ],
}


@pytest.fixture(scope="module")
def model():
    config = replace(TINY, num_classes=6)
    clusters = Clusters((0, 0, 1, 2, 2, 2), (3, 1, 2, 1, 1, 2), "")
    description = Description(config, ("a", "b", "c"), {"sampler": "multistep", "steps": 3, "ts": (0, 1, 2)}, clusters)
    return ImageModel((draw_weights(config, seed=0), description), device="cpu", micro_batch=1)


def requests(kinds, required, count):
    """Dictionaries of arguments, most of them usual, some odd."""
    rng = random.Random(0)
    for _ in range(count):
        names = [*required, *rng.sample(sorted(kinds.keys() - set(required)), rng.randint(0, 4))]
        asked = {name: rng.choice(kinds[name]) for name in names}
        if rng.random() < 0.6:
            asked[rng.choice(names)] = rng.choice(ODD)
        yield asked


@pytest.mark.parametrize(
    ("method", "kinds", "required"),
    [("sample", SAMPLE | SETTINGS, ["num_samples", "steps"]), ("edit", EDIT | SETTINGS, ["image", "task", "steps"])],
)
def test_only_results_and_sentences(model, method, kinds, required):
    images = 0
    for asked in requests(kinds, required, 250):
        try:
            batch = getattr(model, method)(**asked)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 300 and str(error)[-1] in ".?", asked
        except Exception as error:
            raise AssertionError(f"{method} of {asked} raised {error!r}") from error
        else:
            images += 1
            assert batch.array.dtype == np.uint8 and batch.array.shape[1:] == (16, 16, 3), asked
    assert images > 20
