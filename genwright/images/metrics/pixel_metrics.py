"""Comparing images with images without anyone's weights: near copies, distinct images, a judge's distance."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genwright.errors import UserError
from genwright.images.data.dataset import TrainingImages, read_file
from genwright.images.metrics.feature_metrics import fit, frechet_distance
from genwright.images.metrics.judge import balanced_accuracy, distinct, near_copies, train_judge

COPIES = 10_000  # samples that are looked for among the references
DISTINCT = 1000  # images that are compared with each other
SIZE = 32  # pixels at most that the judge sees
STEPS = 200  # of its training: about a minute on two cores


def read_images(path: Path) -> TrainingImages | None:
    """The images of a file with their labels, or None where it holds features or statistics instead."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
    except Exception:  # whoever reads the file tells what is wrong with it
        return None
    if "features" in names or not names & {"arr_0", "images"}:
        return None
    return read_file(path).in_memory(COPIES)


def compare_images(samples: TrainingImages, reference: TrainingImages) -> dict[str, float]:
    """The share of samples that are near copies of references, and the shares of distinct ones on either side."""
    if samples.images.shape[1:] != reference.images.shape[1:]:
        ours, theirs = ("{2} x {1}".format(*data.images.shape) for data in (samples, reference))
        raise UserError(f"The samples are images of {ours} pixels, and the references of {theirs}.")
    if min(len(samples), len(reference)) < 2:
        raise UserError("Comparing images needs two or more on both sides.")
    a, b = samples.images[:], reference.images[:]
    some = np.random.default_rng(0).permutation(len(b))[: min(DISTINCT, len(a))]
    return {
        "near_copies": near_copies(a[:COPIES], b),
        "distinct": distinct(a[:DISTINCT]),
        "distinct_reference": distinct(b[some]),
    }


def judge_images(
    samples: TrainingImages,
    reference: TrainingImages,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """The Frechet distance in the features of a classifier that learns the references' classes; its agreement."""
    small, seen = _shrunk(reference), _shrunk(samples).images
    judge = train_judge(small, device, STEPS, progress=progress)
    features, predicted = judge.look(seen[:])
    result = {"judge_frechet": frechet_distance(fit(features), fit(judge.look(small.images[:])[0]))}
    if samples.labels is not None:
        result["judge_agreement"] = balanced_accuracy(predicted, samples.labels)
    return result


def _shrunk(data: TrainingImages) -> TrainingImages:
    # Means of squares of pixels; what is left at the edges is cut.
    step = -(-max(data.images.shape[1:3]) // SIZE)
    if step == 1:
        return data
    height, width = (side // step for side in data.images.shape[1:3])
    images = data.images[:][:, : height * step, : width * step]
    means = images.reshape(len(data), height, step, width, step, 3).mean(axis=(2, 4))
    return replace(data, images=means.round().astype(np.uint8))
