"""FIDAndIS: the original's FID and Inception Score on torch tensors, without CLIP."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cm import dist_util
from genwright.errors import UserError
from genwright.images.metrics import feature_metrics
from genwright.images.metrics.feature_metrics import Statistics, fit, read_features
from genwright.images.metrics.inception import Inception
from genwright.images.metrics.inception_download import find
from genwright.images.metrics.inception_weights import load_inception


def open_inception(device: torch.device) -> Inception:
    """FID's Inception with the weights that `genwright pull inception` keeps."""
    if (path := find()) is None:
        raise UserError("FID and Inception Score need Inception weights; run `genwright pull inception` once.")
    return load_inception(path, device)


class FIDStatistics:
    """A Gaussian fitted to features."""

    def __init__(self, mu: np.ndarray, sigma: np.ndarray, resolution: int = -1):
        self.mu, self.sigma, self.resolution = mu, sigma, resolution

    def frechet_distance(self, other: "FIDStatistics") -> float:
        return feature_metrics.frechet_distance(Statistics(self.mu, self.sigma), Statistics(other.mu, other.sigma))


class FIDAndIS:
    """Inception features of images, their statistics, and those of reference batches."""

    def __init__(self, softmax_batch_size: int = 512, inception: Inception | None = None):
        self.softmax_batch_size = softmax_batch_size
        self.inception = inception or open_inception(dist_util.dev())
        self.ref_features: dict[str, tuple[FIDStatistics, FIDStatistics | None, None]] = {}

    def get_statistics(self, activations: np.ndarray, resolution: int) -> FIDStatistics:
        return FIDStatistics(*fit(activations), resolution)

    @torch.no_grad()
    def get_preds(self, batch: Tensor, captions: Any = None) -> tuple[Tensor, Tensor, None, None, np.ndarray]:
        """Features and spatial features of images [N, 3, H, W] in [-1, 1], and the images; CLIP's features are None."""
        if captions is not None:
            raise UserError("Captions need CLIP, which Genwright does not have.")
        pixels = 127.5 * (batch + 1)
        images = pixels.to(torch.uint8).cpu().numpy().transpose(0, 2, 3, 1)
        return *self.inception(pixels), None, None, images

    @torch.no_grad()
    def get_inception_score(self, activations: np.ndarray, split_size: int = feature_metrics.SPLIT) -> float:
        """The mean of the scores of parts of `split_size` images."""
        features = torch.from_numpy(activations).to(self.inception.device)
        parts = features.split(self.softmax_batch_size)
        chances = torch.cat([(part @ self.inception.classifier.T).softmax(dim=1) for part in parts]).cpu().numpy()
        starts = range(0, len(chances), split_size)
        return float(np.mean([feature_metrics.inception_score(chances[i : i + split_size]) for i in starts]))

    def set_ref_batch(self, ref_batch: str) -> None:
        """Read the statistics of a reference batch, or compute them from its images."""
        found = read_features(Path(ref_batch), self.inception)
        spatial = None if found.spatial_statistics is None else FIDStatistics(*found.spatial_statistics)
        assert found.statistics is not None
        self.ref_features[ref_batch] = FIDStatistics(*found.statistics), spatial, None

    def get_ref_batch(self, ref_batch: str) -> tuple[FIDStatistics, FIDStatistics | None, None]:
        """Statistics of features and of spatial features; those of CLIP are None."""
        return self.ref_features[ref_batch]
