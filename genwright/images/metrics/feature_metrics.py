"""Metrics of Inception features: FID, sFID, Inception Score, precision and recall as in OpenAI's evaluator, and KID."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch

from genwright.errors import UserError
from genwright.images.data.dataset import UNREADABLE, are_images
from genwright.images.metrics.inception import Inception

NEIGHBOURS = 3
SPLIT = 5000
SUBSETS, SUBSET = 100, 1000  # of KID, as clean-fid has them
FEW = 10_000  # with fewer images FID is mostly bias
ROWS = 1024  # of a distance matrix, computed at a time


class Statistics(NamedTuple):
    """A Gaussian fitted to features: mu [D] and sigma [D, D] in float64."""

    mu: np.ndarray
    sigma: np.ndarray


@dataclass(frozen=True)
class FeatureSet:
    """The features of a file of samples or references; the spatial statistics are for sFID."""

    features: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    statistics: Statistics | None = None
    spatial_statistics: Statistics | None = None


def fit(features: np.ndarray) -> Statistics:
    """Mean and covariance of features [N, D]."""
    features = np.asarray(features, dtype=np.float64)
    return Statistics(features.mean(axis=0), np.atleast_2d(np.cov(features, rowvar=False)))


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """|mu_a - mu_b|^2 + tr(A + B - 2 (A B)^1/2); Heusel et al. (2017)."""
    if a.mu.shape != b.mu.shape:
        raise UserError(f"Features must have as many dimensions on both sides, not {len(a.mu)} and {len(b.mu)}.")
    # tr (A B)^1/2 is that of the symmetric (A^1/2 B A^1/2)^1/2, whose eigenvalues are real however singular A is.
    values, vectors = scipy.linalg.eigh(a.sigma)
    root = vectors * np.sqrt(values.clip(min=0)) @ vectors.T
    trace = np.sqrt(scipy.linalg.eigvalsh(root @ b.sigma @ root).clip(min=0)).sum()
    difference = a.mu - b.mu
    return float(difference @ difference + np.trace(a.sigma) + np.trace(b.sigma) - 2 * trace)


def inception_score(probabilities: np.ndarray) -> float:
    """exp of the mean KL from each image's class distribution to the mean one, averaged over splits of 5,000."""
    scores = []
    for start in range(0, len(probabilities), SPLIT):
        part = np.asarray(probabilities[start : start + SPLIT], dtype=np.float64)
        tiny = np.finfo(np.float64).tiny  # 0 ln 0 = 0
        kl = part * (np.log(part.clip(tiny)) - np.log(part.mean(axis=0).clip(tiny)))
        scores.append(math.exp(kl.sum(axis=1).mean()))
    return float(np.mean(scores))


def kernel_distance(a: np.ndarray, b: np.ndarray, subsets: int = SUBSETS, subset: int = SUBSET) -> float:
    """KID (Binkowski et al. 2018): the squared MMD of features under (x y / D + 1)^3, unbiased, a mean over subsets."""
    if a.shape[1] != b.shape[1]:
        raise UserError(f"Features must have as many dimensions on both sides, not {a.shape[1]} and {b.shape[1]}.")
    size = min(len(a), len(b), subset)
    if size == max(len(a), len(b)):
        subsets = 1  # all of them would be the same
    rng = np.random.default_rng(0)
    total = 0.0
    for _ in range(subsets):
        x, y = (np.asarray(f[rng.permutation(len(f))[:size]], np.float64) for f in (a, b))
        xx, yy, xy = ((p @ q.T / a.shape[1] + 1) ** 3 for p, q in ((x, x), (y, y), (x, y)))
        apart = sum(k.sum() - np.trace(k) for k in (xx, yy)) / (size * (size - 1))
        total += apart - 2 * xy.mean()
    return total / subsets


def precision_recall(reference: np.ndarray, samples: np.ndarray) -> tuple[float, float]:
    """The shares of samples within the references' manifold, and of references within the samples'.

    A manifold is the union of balls around the points, each with the third neighbour on its surface (Kynkäänniemi et
    al. 2019).
    """
    for features in (reference, samples):
        if len(features) <= NEIGHBOURS:
            raise UserError(f"Precision and recall need more than {NEIGHBOURS} images on both sides.")
    # Distances are computed as differences of products, which lose less precision after centring.
    centre = np.asarray(reference).mean(axis=0)
    real, fake = (torch.from_numpy(np.asarray(f) - centre).to(torch.float64) for f in (reference, samples))
    return _share_within(fake, real), _share_within(real, fake)


def _share_within(points: torch.Tensor, manifold: torch.Tensor) -> float:
    radii = torch.cat(
        [_squared_distances(rows, manifold).kthvalue(NEIGHBOURS + 1, dim=1).values for rows in manifold.split(ROWS)]
    )
    inside = [(_squared_distances(rows, manifold) <= radii).any(dim=1) for rows in points.split(ROWS)]
    return torch.cat(inside).double().mean().item()


def _squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    squares = (a**2).sum(dim=1)[:, None] + (b**2).sum(dim=1)
    return (squares - 2 * a @ b.T).clamp(min=0)


def read_features(path: Path, inception: Inception | None) -> FeatureSet:
    """Read an .npz of images (`arr_0` or `images`), of `features` [N, D], or of statistics `mu` and `sigma`.

    `spatial`, `probabilities`, `mu_s` and `sigma_s` are optional; given statistics are not computed again.
    """
    arrays = _read_npz(path)
    features, spatial, probabilities = (arrays.get(key) for key in ("features", "spatial", "probabilities"))
    images = arrays.get("arr_0", arrays.get("images"))
    if features is None and images is not None and inception is not None:
        features, spatial, probabilities = inception.features(_check_images(path, images))
    for key, array in (("features", features), ("spatial", spatial), ("probabilities", probabilities)):
        if array is not None and (array.ndim != 2 or len(array) < 2):
            raise UserError(f"{key} in {path} must be a matrix of two rows or more, but has shape {list(array.shape)}.")
        if array is not None:
            _check_finite(path, key, array)
    statistics = _given(path, arrays, "mu", "sigma") or (None if features is None else fit(features))
    spatial_statistics = _given(path, arrays, "mu_s", "sigma_s") or (None if spatial is None else fit(spatial))
    if statistics is None:
        if images is not None:
            raise UserError(
                f"{path} holds images, and their metrics need Inception weights: give --inception FILE, or run "
                "`genwright pull inception`."
            )
        names = ", ".join(arrays) or "nothing"
        raise UserError(f"{path} must hold images (arr_0), features, or mu and sigma, but holds {names}.")
    return FeatureSet(features, probabilities, statistics, spatial_statistics)


def compare(samples: FeatureSet, reference: FeatureSet) -> dict[str, float]:
    """All metrics for which both sides have the features."""
    result: dict[str, float] = {}
    if samples.statistics and reference.statistics:
        result["fid"] = frechet_distance(samples.statistics, reference.statistics)
    if samples.spatial_statistics and reference.spatial_statistics:
        result["sfid"] = frechet_distance(samples.spatial_statistics, reference.spatial_statistics)
    if samples.probabilities is not None:
        result["inception_score"] = inception_score(samples.probabilities)
    if samples.features is not None and reference.features is not None:
        result["kid"] = kernel_distance(samples.features, reference.features)
        result["precision"], result["recall"] = precision_recall(reference.features, samples.features)
    return result


def too_few(samples: FeatureSet, reference: FeatureSet) -> str | None:
    """A warning if there are so few images that FID means little."""
    counts = [len(one.features) for one in (samples, reference) if one.features is not None]
    if not counts or min(counts) >= FEW:
        return None
    return (
        f"FID and sFID of {min(counts):,} images are far too large and depend on the number of images; use {FEW:,} or "
        "more. KID has no such bias."
    )


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except UNREADABLE as error:
        raise UserError(f"{path} is not a readable .npz file of numbers.") from error


def _check_images(path: Path, images: np.ndarray) -> np.ndarray:
    if not are_images(images):
        raise UserError(
            f"arr_0 in {path} must be uint8 images [N, H, W, 3], but is {images.dtype} of shape {list(images.shape)}."
        )
    return images


def _given(path: Path, arrays: dict[str, np.ndarray], mu: str, sigma: str) -> Statistics | None:
    if mu not in arrays or sigma not in arrays:
        return None
    if arrays[mu].ndim != 1 or arrays[sigma].shape != 2 * arrays[mu].shape:
        raise UserError(f"{mu} and {sigma} in {path} must be a vector and a square matrix of the same size.")
    for key in (mu, sigma):
        _check_finite(path, key, arrays[key])
    return Statistics(arrays[mu].astype(np.float64), arrays[sigma].astype(np.float64))


def _check_finite(path: Path, key: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise UserError(f"{key} in {path} must hold finite numbers only.")
