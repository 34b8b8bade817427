import numpy as np
import pytest
import torch

from genwright.errors import UserError
from genwright.images.data.dataset import TrainingImages
from genwright.images.metrics import pixel_metrics as image_metrics


def coloured(count, seed, size=8, classes=3):
    """Images of noise in which each class has a main colour."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = rng.integers(0, 120, (count, size, size, 3))
    images[np.arange(count), :, :, labels] += 120
    return TrainingImages(images.astype(np.uint8), labels, ("r", "g", "b"), np.arange(count).astype(str))


def test_copies_are_found():
    reference, samples = coloured(30, 0), coloured(20, 1)
    samples.images[:5] = reference.images[7]
    result = image_metrics.compare_images(samples, reference)
    assert result == {"near_copies": 0.25, "distinct": 16 / 20, "distinct_reference": 1.0}


def test_the_judge_tells_good_samples_from_noise(monkeypatch):
    monkeypatch.setattr(image_metrics, "STEPS", 20)
    monkeypatch.setattr(image_metrics, "SIZE", 8)
    reference, good = coloured(60, 0, size=16), coloured(60, 1, size=16)
    noise = TrainingImages(
        np.random.default_rng(2).integers(0, 256, good.images.shape, dtype=np.uint8), None, (), good.names
    )
    told = []
    near, far = (
        image_metrics.judge_images(samples, reference, torch.device("cpu"), lambda *done: told.append(done))
        for samples in (good, noise)
    )
    assert near["judge_agreement"] > 0.9 and near["judge_frechet"] < far["judge_frechet"] / 4
    assert "judge_agreement" not in far and len(told) == 40


def test_what_cannot_be_compared_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="8 x 8 pixels, and the references of 4 x 4"):
        image_metrics.compare_images(coloured(4, 0), coloured(4, 0, size=4))
    with pytest.raises(UserError, match="two or more"):
        image_metrics.compare_images(coloured(1, 0), coloured(4, 0))
    np.savez(tmp_path / "features.npz", features=np.zeros((3, 2)))
    assert image_metrics.read_images(tmp_path / "features.npz") is None
    assert image_metrics.read_images(tmp_path / "missing.npz") is None
