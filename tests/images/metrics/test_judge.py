import numpy as np
import torch
from images.coloured_noise import coloured

from genwright.images.data.dataset import ImageDataset
from genwright.images.metrics import judge
from genwright.images.metrics.judge import assess, balanced_accuracy, judge_images, train_judge


def test_assess_tells_good_samples_from_noise():
    torch.set_num_threads(1)
    train, held = coloured(120, 0).split(0.3)
    trained = train_judge(train, torch.device("cpu"), steps=60)
    rng = np.random.default_rng(1)

    def real(labels, seed):
        return np.stack([train.images[rng.choice(np.flatnonzero(train.labels == label))] for label in labels])

    def noise(labels, seed):
        return rng.integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)

    result = assess(trained, train, held, {"real": real, "noise": noise}, per_class=10)
    assert result["judge_accuracy"] > 0.9 and result["agreement_real"] > 0.9 > 0.6 > result["agreement_noise"]
    assert result["frechet_real"] < result["frechet_noise"] / 4
    assert result["distinct_noise"] == 1 > result["distinct_training"] > 0.5
    assert result["near_copies_real"] == 1 and result["near_copies_noise"] == result["near_copies_held_out"] == 0


def test_balanced_accuracy_counts_classes_equally():
    predicted, labels = np.array([0, 0, 0, 1]), np.array([0, 0, 0, 2])
    assert balanced_accuracy(predicted, labels) == 0.5


def test_judge_images_tells_good_samples_from_noise(monkeypatch):
    monkeypatch.setattr(judge, "QUICK_STEPS", 20)
    monkeypatch.setattr(judge, "SIZE", 8)
    reference, good = coloured(60, 0, size=16), coloured(60, 1, size=16)
    noise = ImageDataset(
        np.random.default_rng(2).integers(0, 256, good.images.shape, dtype=np.uint8), None, (), good.names
    )
    told = []
    near, far = (
        judge_images(samples, reference, torch.device("cpu"), lambda *done: told.append(done))
        for samples in (good, noise)
    )
    assert near["judge_agreement"] > 0.9 and near["judge_frechet"] < far["judge_frechet"] / 4
    assert "judge_agreement" not in far and len(told) == 40
