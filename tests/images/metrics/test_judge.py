import numpy as np
import pytest
import torch

from genwright.images.data.dataset import TrainingImages
from genwright.images.metrics.judge import assess, balanced_accuracy, distinct, near_copies, train_judge


@pytest.fixture(scope="module")
def colours():
    """Three classes that differ by their main colour."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = rng.integers(0, 120, (120, 8, 8, 3))
    images[np.arange(120), :, :, labels] += 120
    return TrainingImages(images.astype(np.uint8), labels, ("r", "g", "b"), np.arange(120).astype(str))


def test_good_samples_are_told_from_bad_ones(colours):
    torch.set_num_threads(1)
    train, held = colours.split(0.3)
    judge = train_judge(train, torch.device("cpu"), steps=60)
    rng = np.random.default_rng(1)

    def real(labels, seed):
        return np.stack([train.images[rng.choice(np.flatnonzero(train.labels == label))] for label in labels])

    def noise(labels, seed):
        return rng.integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)

    result = assess(judge, train, held, {"real": real, "noise": noise}, per_class=10)
    assert result["judge_accuracy"] > 0.9 and result["agreement_real"] > 0.9 > 0.6 > result["agreement_noise"]
    assert result["frechet_real"] < result["frechet_noise"] / 4
    assert result["distinct_noise"] == 1 > result["distinct_training"] > 0.5
    assert result["near_copies_real"] == 1 and result["near_copies_noise"] == result["near_copies_held_out"] == 0


def test_balanced_accuracy_counts_classes_equally():
    predicted, labels = np.array([0, 0, 0, 1]), np.array([0, 0, 0, 2])
    assert balanced_accuracy(predicted, labels) == 0.5


def test_repeated_images_are_not_distinct():
    a, b = np.random.default_rng(0).integers(20, 236, (2, 8, 8, 3), dtype=np.uint8)
    assert distinct(np.stack([a, a + 15, b, a - 17, b])) == 3 / 5


def test_near_copies_see_mirrored_ones():
    originals = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    near = np.clip(originals[:2, :, ::-1].astype(int) + 10, 0, 255).astype(np.uint8)
    assert near_copies(np.concatenate([near, 255 - originals[:2]]), originals) == 0.5
