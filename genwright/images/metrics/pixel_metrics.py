"""Metrics of the pixels alone: near copies of reference images, and how many samples are distinct."""

from pathlib import Path

import numpy as np
import torch

from genwright.errors import UserError
from genwright.images.data.dataset import ImageDataset, read_file

NEAR = 16  # two images whose root-mean-square difference (of 255) is at most this are near copies
COPIES = 10_000  # samples that are compared with the references
DISTINCT = 1000  # images that are compared with each other
ROWS, ORIGINALS = 256, 4096  # images and originals compared at a time


def read_images(path: Path) -> ImageDataset | None:
    """The images of a file with their labels, or None if it holds features or statistics instead."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
    except Exception:  # read_features reports what is wrong with the file
        return None
    if "features" in names or not names & {"arr_0", "images"}:
        return None
    return read_file(path).in_memory(COPIES)


def compare_images(samples: ImageDataset, reference: ImageDataset) -> dict[str, float]:
    """The share of samples that are near copies of references, and the shares of distinct images on both sides."""
    if samples.images.shape[1:] != reference.images.shape[1:]:
        ours, theirs = ("{2} x {1}".format(*data.images.shape) for data in (samples, reference))
        raise UserError(f"Samples must be as large as the references, {theirs} pixels, not {ours}.")
    if min(len(samples), len(reference)) < 2:
        raise UserError("Comparing images needs two or more images on both sides.")
    a, b = samples.images[:], reference.images[:]
    some = np.random.default_rng(0).permutation(len(b))[: min(DISTINCT, len(a))]
    return {
        "near_copies": near_copies(a[:COPIES], b),
        "distinct": distinct(a[:DISTINCT]),
        "distinct_reference": distinct(b[some]),
    }


def distinct(images: np.ndarray) -> float:
    """The share of images that are no near copies of an earlier one."""
    rows = torch.from_numpy(images.astype(np.float32)).flatten(1)
    kept, count = torch.empty_like(rows), 0
    for row in rows:
        if not ((kept[:count] - row).square().mean(dim=1) <= NEAR**2).any():
            kept[count] = row
            count += 1
    return count / len(rows)


def near_copies(images: np.ndarray, originals: np.ndarray) -> float:
    """The share of images that are near copies of an original, mirrored or not."""
    rows = torch.from_numpy(images.astype(np.float32)).flatten(1)
    limit = NEAR * rows.shape[1] ** 0.5
    near = torch.zeros(len(rows), dtype=torch.bool)
    for start in range(0, len(originals), ORIGINALS):
        part = originals[start : start + ORIGINALS]
        for either in (part, part[:, :, ::-1]):
            flat = torch.from_numpy(either.astype(np.float32)).flatten(1)
            for i in range(0, len(rows), ROWS):
                near[i : i + ROWS] |= torch.cdist(rows[i : i + ROWS], flat).amin(dim=1) <= limit
    return float(near.float().mean())
