"""Clusters: groups of images of one class that look alike, used as the UNet's labels in place of classes.

A cluster says more about an image than its class, which helps most where a model has only one or two steps (compare the
discrete latents of Xu et al. 2024, DisCo-Diff). To sample a class, one of its clusters is drawn at random.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from genwright.images.model.unet import UNet


@dataclass(frozen=True)
class Clusters:
    """The class of every cluster, in order, its number of training images, and a hash of which images those are."""

    classes: tuple[int, ...]
    counts: tuple[int, ...]
    digest: str

    def __post_init__(self) -> None:
        steps = {after - before for before, after in pairwise((0, *self.classes))}
        if not self.classes or self.classes[0] or not steps <= {0, 1}:
            raise ValueError("clusters must be of classes 0, 1, ... in order")
        if len(self.counts) != len(self.classes) or min(self.counts) < 1:
            raise ValueError("every cluster must have one image or more")

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def num_classes(self) -> int:
        return self.classes[-1] + 1

    def draw(self, labels: Tensor, words: Tensor) -> Tensor:
        """Draw a cluster of each class of `labels` [N] by random 32-bit words [N], in proportion to `counts`: [N]."""
        ends = torch.tensor(list(accumulate(self.counts)), device=labels.device)
        sizes = torch.zeros(self.num_classes, dtype=torch.long, device=labels.device)
        sizes.index_add_(0, torch.tensor(self.classes, device=labels.device), torch.tensor(self.counts).to(labels))
        firsts = sizes.cumsum(0) - sizes
        return torch.searchsorted(ends, firsts[labels] + (words * sizes[labels] >> 32), right=True)


def classes_to_clusters(unet: UNet, clusters: Clusters) -> UNet:
    """A UNet with clusters as labels; each cluster starts with the embedding of its class."""
    state = unet.state_dict()
    state["label_emb.weight"] = state["label_emb.weight"][list(clusters.classes)]
    widened = UNet(replace(unet.config, num_classes=len(clusters)))
    widened.load_state_dict(state)
    return widened
