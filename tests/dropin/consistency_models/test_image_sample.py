"""image_sample: every sampler against ImageModel, every flag's effect, and its files."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dropin.consistency_models.tiny import CONFIG, flags

from genwright.errors import UserError
from genwright.images.model.checkpoint import draw_weights
from genwright.images.sampling.pipeline import ImageModel

BASE = {"num_samples": 4, "batch_size": 2, "steps": 3}


def sample(log: Path, monkeypatch: pytest.MonkeyPatch, **values: object) -> list[np.ndarray]:
    """The arrays that the command writes."""
    import image_sample

    torch.manual_seed(0)
    monkeypatch.setattr(sys, "argv", ["image_sample", *flags(**BASE | values)])
    image_sample.main()
    (path,) = log.glob("samples_*.npz")
    with np.load(path) as file:
        arrays = [file[name] for name in file.files]
    assert path.name == f"samples_{'x'.join(map(str, arrays[0].shape))}.npz"
    path.unlink()
    return arrays


@pytest.mark.parametrize("sampler", ["heun", "dpm", "euler", "ancestral", "onestep", "multistep", "progdist"])
@pytest.mark.parametrize("generator", ["determ", "determ-indiv"])
def test_images_are_those_of_our_own_sampler(sampler, generator, tiny_pt, ranks, monkeypatch) -> None:
    consistency = sampler in ("onestep", "multistep")
    settings = {"sampler": sampler, "generator": generator, "s_churn": 1.0 if sampler in ("heun", "dpm") else 0.0}
    ts = {"ts": "0,1,2"} if sampler == "multistep" else {}
    mode = "consistency_distillation" if consistency else "edm"
    (found,) = sample(ranks, monkeypatch, model_path=tiny_pt, training_mode=mode, **settings, **ts)
    model = ImageModel(str(tiny_pt), config=CONFIG, device="cpu")
    ts = {"ts": (0, 1, 2)} if ts else {}
    expected = model.sample(4, seed=42, batch_size=2, steps=3, **settings, **ts).array
    assert np.abs(found.astype(int) - expected).max() <= 1
    # A pixel is rounded down, and the last step of heun and dpm to a white one may end just below it.
    assert (found != expected).mean() < (0.2 if sampler in ("heun", "dpm") else 0.01)


CHANGES = [
    {"training_mode": "consistency_training"},
    {"generator": "dummy"},
    {"clip_denoised": "False"},
    {"num_samples": 3},
    {"batch_size": 4},
    {"sampler": "euler"},
    {"s_churn": 1},
    {"steps": 4},
    {"seed": 7},
    {"sigma_min": 0.1},
    {"sigma_max": 40},
    {"use_fp16": "True"},
]
CHURN = {"s_churn": 1}
MULTISTEP = {"sampler": "multistep", "ts": "0,1,2", "training_mode": "consistency_training"}


def test_every_flag_changes_the_samples(tiny_pt, ranks, monkeypatch) -> None:
    def arrays(**values: object) -> np.ndarray:
        return sample(ranks, monkeypatch, model_path=tiny_pt, **values)[0]

    base = arrays()
    for change in CHANGES:
        assert not np.array_equal(arrays(**change), base), change
    churned = arrays(**CHURN)
    for change in ({"s_tmin": 1}, {"s_tmax": 1}, {"s_noise": 1.5}):
        assert not np.array_equal(arrays(**CHURN, **change), churned), change
    assert not np.array_equal(arrays(**MULTISTEP), arrays(**MULTISTEP | {"ts": "0,2"}))


def test_labels_are_written_beside_the_images(tmp_path, ranks, monkeypatch) -> None:
    path = tmp_path / "classes.pt"
    torch.save(draw_weights(replace(CONFIG, num_classes=1000), seed=0).state_dict(), path)
    images, labels = sample(ranks, monkeypatch, model_path=path, class_cond="True", sampler="onestep", num_samples=3)
    assert images.shape == (3, 16, 16, 3)
    assert labels.shape == (3,) and len(set(labels.tolist())) == 3 and labels.min() >= 0 and labels.max() < 1000


def test_mistakes_are_one_sentence(tiny_pt, ranks, monkeypatch) -> None:
    for values, words in (
        ({"sampler": "multistep"}, r"--ts must be whole numbers, 0 or more, joined by commas, not ''"),
        ({"sampler": "heunn"}, "sampler must be"),
        ({"generator": "random"}, "There is no generator 'random'"),
        ({"channel_mult": ""}, "--channel_mult must be given for --image_size 16"),
        ({"channel_mult": "1,2,x"}, "--channel_mult must be whole numbers"),
        ({"num_channels": 64}, "in state_dict has shape"),
    ):
        with pytest.raises(UserError, match=words):
            sample(ranks, monkeypatch, model_path=tiny_pt, **values)
