"""The judge: a small classifier of a labelled data set, in whose features samples are measured.

It is trained on the training images only; its figures for held-out images are what those of samples are compared with.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genwright.images.data.dataset import Batches, ImageDataset, block_means
from genwright.images.metrics.feature_metrics import fit, frechet_distance
from genwright.images.metrics.pixel_metrics import distinct, near_copies

BATCH = 256
SIZE = 32  # judge_images: pixels at most
QUICK_STEPS = 200  # judge_images: training steps, about a minute on two cores

Sample = Callable[[np.ndarray, int], np.ndarray]  # labels [N] and a seed -> images [N, H, W, 3] uint8


class Judge(nn.Module):
    """x [N, 3, H, W] in [-1, 1] -> class logits; `features` are 128 numbers per image."""

    def __init__(self, num_classes: int, width: int = 32):
        super().__init__()
        widths = (width, 2 * width, 4 * width, 4 * width)
        layers: list[nn.Module] = []
        channels = 3
        for i, out in enumerate(widths):
            layers += [nn.Conv2d(channels, out, 3, stride=1 if i in (0, 3) else 2, padding=1), nn.GroupNorm(8, out)]
            layers += [nn.SiLU()]
            channels = out
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.features(x), 0.3, self.training))

    @torch.no_grad()
    def predict(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, 128] and predicted labels [N] of uint8 images [N, H, W, 3]."""
        device = self.head.weight.device
        features, labels = [], []
        for part in torch.from_numpy(images).split(BATCH):
            f = self.features(part.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1)
            features.append(f.cpu())
            labels.append(self.head(f).argmax(dim=1).cpu())
        return torch.cat(features).numpy(), torch.cat(labels).numpy()


def train_judge(
    data: ImageDataset,
    device: torch.device,
    steps: int = 1500,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Judge:
    """Train a classifier: classes are equally likely, images are mirrored and shifted by up to two pixels at random."""
    assert data.num_classes is not None
    torch.manual_seed(seed)
    judge = Judge(data.num_classes).to(device).train()
    batches = Batches(data, device, balance=1.0, mirrored=("all",))
    optimizer = torch.optim.AdamW(judge.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        progress(step, steps)
        x, labels = batches.draw(128)
        dy, dx = torch.randint(5, (2,)).tolist()
        size = x.shape[-1]
        x = F.pad(x, (2, 2, 2, 2), mode="replicate")[:, :, dy : dy + size, dx : dx + size]
        assert labels is not None
        F.cross_entropy(judge(x), labels, label_smoothing=0.1).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return judge.eval()


def balanced_accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The share of correct predictions, averaged over the classes."""
    return float(np.mean([(predicted[labels == label] == label).mean() for label in np.unique(labels)]))


def judge_images(
    samples: ImageDataset,
    reference: ImageDataset,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train a judge on the references; the Frechet distance in its features, and how often it predicts the labels."""
    small, shrunk = _shrink(reference), _shrink(samples).images
    judge = train_judge(small, device, QUICK_STEPS, progress=progress)
    features, predicted = judge.predict(shrunk[:])
    result = {"judge_frechet": frechet_distance(fit(features), fit(judge.predict(small.images[:])[0]))}
    if samples.labels is not None:
        result["judge_agreement"] = balanced_accuracy(predicted, samples.labels)
    return result


def _shrink(data: ImageDataset) -> ImageDataset:
    factor = -(-max(data.images.shape[1:3]) // SIZE)
    if factor == 1:
        return data
    return replace(data, images=block_means(data.images[:], factor).round().astype(np.uint8))


def assess(
    judge: Judge, train: ImageDataset, held_out: ImageDataset, samplers: dict[str, Sample], per_class: int = 64
) -> dict[str, float]:
    """Agreement, Frechet distances, near copies and distinct samples of every sampler, beside those of held-out images.

    Frechet distances are taken between samples with the held-out labels and as many training images, or, in `reverse`
    ones, the held-out images. The share of distinct images is averaged over the classes.
    """
    assert held_out.labels is not None and train.num_classes is not None
    classes = range(train.num_classes)
    rng = np.random.default_rng(1)
    drawn = [rng.choice(np.flatnonzero(train.labels == label), per_class) for label in classes]
    some = np.random.default_rng(0).permutation(len(train))[: len(held_out)]
    originals, others = train.images[:], held_out.images[:]
    train_features, _ = judge.predict(originals[some])
    held_features, predicted = judge.predict(others)
    of_train, of_held = fit(train_features), fit(held_features)
    result = {
        "judge_accuracy": balanced_accuracy(predicted, held_out.labels),
        "frechet_held_out": frechet_distance(of_held, of_train),
        "near_copies_held_out": near_copies(others, originals),
        "distinct_training": float(np.mean([distinct(originals[rows]) for rows in drawn])),
    }
    for name, sample in samplers.items():
        labels = np.arange(train.num_classes * per_class) % train.num_classes
        images = sample(labels, 1)
        result[f"agreement_{name}"] = balanced_accuracy(judge.predict(images)[1], labels)
        result[f"near_copies_{name}"] = near_copies(images, originals)
        result[f"distinct_{name}"] = float(np.mean([distinct(images[labels == label]) for label in classes]))
        of_samples = fit(judge.predict(sample(held_out.labels, 2))[0])
        result[f"frechet_{name}"] = frechet_distance(of_samples, of_train)
        result[f"frechet_reverse_{name}"] = frechet_distance(of_samples, of_held)
    return result
