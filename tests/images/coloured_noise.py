"""A data set whose classes are easy to tell apart."""

import numpy as np

from genwright.images.data.dataset import ImageDataset


def coloured(count, seed, size=8, classes=3):
    """Images of noise in which each class has a main colour."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = rng.integers(0, 120, (count, size, size, 3))
    images[np.arange(count), :, :, labels] += 120
    return ImageDataset(images.astype(np.uint8), labels, ("r", "g", "b"), np.arange(count).astype(str))
