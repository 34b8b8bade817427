"""Judging samples of a labelled data set by a small classifier: agreement, Frechet distance, near copies.

It is trained on the training split alone; what it makes of held-out images is what samples are measured against.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genwright.images.data.dataset import Batches, TrainingImages
from genwright.images.metrics.feature_metrics import fit, frechet_distance

NEAR = 16  # root-mean-square difference of 255 up to which two images count as near copies
BATCH = 256
ORIGINALS = 4096  # how many are compared with at a time

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
    def look(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features [N, 128] and predicted labels [N] of uint8 images [N, H, W, 3]."""
        device = self.head.weight.device
        features, labels = [], []
        for part in torch.from_numpy(images).split(BATCH):
            f = self.features(part.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1)
            features.append(f.cpu())
            labels.append(self.head(f).argmax(dim=1).cpu())
        return torch.cat(features).numpy(), torch.cat(labels).numpy()


def train_judge(
    data: TrainingImages,
    device: torch.device,
    steps: int = 1500,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Judge:
    """A classifier of the data's labels: classes equally often, images mirrored and shifted by up to two pixels."""
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
    """The share of right predictions, averaged over the classes."""
    return float(np.mean([(predicted[labels == label] == label).mean() for label in np.unique(labels)]))


def distinct(images: np.ndarray) -> float:
    """The share of images that differ from all before them by more than NEAR."""
    rows = torch.from_numpy(images.astype(np.float32)).flatten(1)
    kept, count = torch.empty_like(rows), 0
    for row in rows:
        if not ((kept[:count] - row).square().mean(dim=1) <= NEAR**2).any():
            kept[count] = row
            count += 1
    return count / len(rows)


def near_copies(images: np.ndarray, originals: np.ndarray) -> float:
    """The share of images whose nearest original, mirrored or not, differs by at most NEAR."""
    rows = torch.from_numpy(images.astype(np.float32)).flatten(1)
    limit = NEAR * rows.shape[1] ** 0.5
    near = torch.zeros(len(rows), dtype=torch.bool)
    for start in range(0, len(originals), ORIGINALS):
        part = originals[start : start + ORIGINALS]
        for either in (part, part[:, :, ::-1]):
            flat = torch.from_numpy(either.astype(np.float32)).flatten(1)
            for i in range(0, len(rows), BATCH):
                near[i : i + BATCH] |= torch.cdist(rows[i : i + BATCH], flat).amin(dim=1) <= limit
    return float(near.float().mean())


def assess(
    judge: Judge, train: TrainingImages, held: TrainingImages, samplers: dict[str, Sample], per_class: int = 64
) -> dict[str, float]:
    """Every sampler's agreement, Frechet distances and near copies, beside those of held-out images.

    How many of a class's samples are distinct is averaged over the classes, and compared with random training images.

    Frechet distances are to as many training images as there are held-out ones, and samples have the held-out labels;
    `reverse` ones are to the held-out images instead.
    """
    assert held.labels is not None and train.num_classes is not None
    classes = range(train.num_classes)
    rng = np.random.default_rng(1)
    drawn = [rng.choice(np.flatnonzero(train.labels == label), per_class) for label in classes]
    some = np.random.default_rng(0).permutation(len(train))[: len(held)]
    originals, others = train.images[:], held.images[:]
    train_features, _ = judge.look(originals[some])
    held_features, predicted = judge.look(others)
    of_train, of_held = fit(train_features), fit(held_features)
    result = {
        "judge_accuracy": balanced_accuracy(predicted, held.labels),
        "frechet_held_out": frechet_distance(of_held, of_train),
        "near_copies_held_out": near_copies(others, originals),
        "distinct_training": float(np.mean([distinct(originals[rows]) for rows in drawn])),
    }
    for name, sample in samplers.items():
        labels = np.arange(train.num_classes * per_class) % train.num_classes
        images = sample(labels, 1)
        result[f"agreement_{name}"] = balanced_accuracy(judge.look(images)[1], labels)
        result[f"near_copies_{name}"] = near_copies(images, originals)
        result[f"distinct_{name}"] = float(np.mean([distinct(images[labels == label]) for label in classes]))
        of_samples = fit(judge.look(sample(held.labels, 2))[0])
        result[f"frechet_{name}"] = frechet_distance(of_samples, of_train)
        result[f"frechet_reverse_{name}"] = frechet_distance(of_samples, of_held)
    return result
