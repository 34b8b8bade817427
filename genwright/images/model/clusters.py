"""Clusters: groups of images of one class that look alike.

A model that is told the cluster has less left to decide, which counts where there are only one or two steps for it
(compare the discrete latents of Xu et al. 2024, DisCo-Diff). Asking for a class gives one of its clusters at random.
"""

import hashlib
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.data.dataset import TrainingImages
from genwright.images.model.unet import UNet

SIDE = 8  # images are compared at this size
READ = 4096  # images at a time


@dataclass(frozen=True)
class Clusters:
    """Every cluster's class, in order, how many training images have it, and a hash of which ones."""

    classes: tuple[int, ...]
    counts: tuple[int, ...]
    digest: str

    def __post_init__(self) -> None:
        steps = {after - before for before, after in pairwise((0, *self.classes))}
        if not self.classes or self.classes[0] or not steps <= {0, 1}:
            raise ValueError("clusters should be of classes 0, 1, ... in order")
        if len(self.counts) != len(self.classes) or min(self.counts) < 1:
            raise ValueError("every cluster should have one image or more")

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def num_classes(self) -> int:
        return self.classes[-1] + 1

    def draw(self, labels: Tensor, words: Tensor) -> Tensor:
        """A cluster of each class of `labels` [N], as often as it is seen, by random 32-bit words [N]: [N]."""
        ends = torch.tensor(list(accumulate(self.counts)), device=labels.device)
        sizes = torch.zeros(self.num_classes, dtype=torch.long, device=labels.device)
        sizes.index_add_(0, torch.tensor(self.classes, device=labels.device), torch.tensor(self.counts).to(labels))
        firsts = sizes.cumsum(0) - sizes
        return torch.searchsorted(ends, firsts[labels] + (words * sizes[labels] >> 32), right=True)


def find_clusters(data: TrainingImages, size: int) -> tuple[np.ndarray, Clusters]:
    """Each image's cluster [N], of at most `size` images: small copies, halved along their first principal component.

    That is Boley's principal direction divisive partitioning (1998), class by class and at the median.
    """
    if data.labels is None:
        raise UserError("Images without classes have no clusters: --cluster-size is for those with.")
    if size < 1:
        raise UserError(f"--cluster-size must be 1 or more, not {size}.")
    if data.images.shape[1] < SIDE:
        raise UserError(f"Clusters are found in images of {SIDE} pixels or more, not {data.images.shape[1]}.")
    step = data.images.shape[1] // SIDE
    small = np.concatenate([_shrunk(data.images[i : i + READ], step) for i in range(0, len(data), READ)])
    found = np.zeros(len(data), np.int64)
    classes: list[int] = []
    for label in range(len(data.label_names)):
        rows = np.flatnonzero(data.labels == label)
        if not len(rows):
            raise UserError(f"The class {data.label_names[label]} has no training images to find clusters in.")
        for part in _halved(small, rows, size):
            found[part] = len(classes)
            classes.append(label)
    digest = hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16]
    return found, Clusters(tuple(classes), tuple(np.bincount(found).tolist()), digest)


def _shrunk(images: np.ndarray, step: int) -> np.ndarray:
    blocks = images[:, : step * SIDE, : step * SIDE].reshape(len(images), SIDE, step, SIDE, step, 3)
    return blocks.mean(axis=(2, 4)).reshape(len(images), -1)


def _halved(points: np.ndarray, rows: np.ndarray, size: int) -> list[np.ndarray]:
    # The component's sign is free, so its largest entry is made positive.
    if len(rows) <= size:
        return [rows]
    centred = points[rows] - points[rows].mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    order = np.argsort(centred @ axis * np.sign(axis[np.abs(axis).argmax()]), kind="stable")
    middle = len(rows) // 2
    return _halved(points, rows[order[:middle]], size) + _halved(points, rows[order[middle:]], size)


def told_clusters(unet: UNet, clusters: Clusters) -> UNet:
    """A UNet of classes as one of their clusters, each of which begins as its class."""
    state = unet.state_dict()
    state["label_emb.weight"] = state["label_emb.weight"][list(clusters.classes)]
    told = UNet(replace(unet.config, num_classes=len(clusters)))
    told.load_state_dict(state)
    return told
