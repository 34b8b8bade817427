"""Find clusters: groups of images of one class that look alike (see model/clusters.py)."""

import hashlib

import numpy as np

from genwright.errors import UserError
from genwright.images.data.dataset import ImageDataset, block_means
from genwright.images.model.clusters import Clusters

SIDE = 8  # pixels to which images are shrunk before they are compared
READ = 4096  # images at a time


def find_clusters(data: ImageDataset, size: int) -> tuple[np.ndarray, Clusters]:
    """Each image's cluster [N], of at most `size` images.

    Every class is split at the median along the first principal component of its shrunk images, and the halves again:
    principal direction divisive partitioning (Boley 1998).
    """
    if data.labels is None:
        raise UserError("--cluster-size needs images with classes, but these have none.")
    if size < 1:
        raise UserError(f"--cluster-size must be 1 or more, not {size}.")
    if data.images.shape[1] < SIDE:
        raise UserError(f"--cluster-size needs images of {SIDE} pixels or more, not {data.images.shape[1]}.")
    step, side = data.images.shape[1] // SIDE, data.images.shape[1] // SIDE * SIDE
    parts = (data.images[i : i + READ][:, :side, :side] for i in range(0, len(data), READ))
    small = np.concatenate([block_means(part, step).reshape(len(part), -1) for part in parts])
    found = np.zeros(len(data), np.int64)
    classes: list[int] = []
    for label in range(len(data.label_names)):
        rows = np.flatnonzero(data.labels == label)
        if not len(rows):
            raise UserError(f"The class {data.label_names[label]} has no training images to find clusters in.")
        for part in _halve(small, rows, size):
            found[part] = len(classes)
            classes.append(label)
    digest = hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16]
    return found, Clusters(tuple(classes), tuple(np.bincount(found).tolist()), digest)


def _halve(points: np.ndarray, rows: np.ndarray, size: int) -> list[np.ndarray]:
    # A component's sign is arbitrary, so its largest entry is made positive.
    if len(rows) <= size:
        return [rows]
    centred = points[rows] - points[rows].mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    order = np.argsort(centred @ axis * np.sign(axis[np.abs(axis).argmax()]), kind="stable")
    middle = len(rows) // 2
    return _halve(points, rows[order[:middle]], size) + _halve(points, rows[order[middle:]], size)
