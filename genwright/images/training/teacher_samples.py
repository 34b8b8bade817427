"""Ways from noise to images, as a teacher's sampler takes them: the pairs that a student of few steps is held to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genwright.images.data.dataset import Batches
from genwright.images.model.checkpoint import Description
from genwright.images.model.unet import UNet
from genwright.images.sampling.pipeline import ImageModel
from genwright.images.sampling.samplers import Step

SAMPLER: dict[str, Any] = {"sampler": "heun", "steps": 18}
LOWEST = 0.5  # sigma below which a point is as good as the image
BATCH = 256


@dataclass(frozen=True)
class Trajectories:
    """Images, and what they were at the sampler's noise levels."""

    points: Tensor  # [levels, N, 3, H, W] float16, of which level 0 is noise alone
    sigmas: Tensor  # [levels]
    images: Tensor  # [N, 3, H, W] uint8
    labels: Tensor | None

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Points [count, 3, H, W], their sigmas, images in [-1, 1] and labels; half of them are noise alone."""
        device = self.points.device
        row = torch.randint(self.points.shape[1], (count,), device=device)
        level = torch.randint(len(self.sigmas), (count,), device=device)
        level[: count // 2] = 0
        labels = None if self.labels is None else self.labels[row]
        images = (self.images[row].float() + 0.5) / 127.5 - 1
        return self.points[level, row].float(), self.sigmas[level], images, labels


def trace(
    teacher: UNet,
    batches: Batches,
    count: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trajectories:
    """`count` images of the teacher's, with the labels that batches have; `progress` is told how many there are."""
    labels = None
    if batches.labels is not None:
        torch.manual_seed(seed)
        labels = batches.labels[torch.multinomial(batches.weights, count, replacement=True)]
    model = ImageModel((teacher, Description(teacher.config)), device=str(batches.device))
    points: list[list[Tensor]] = []
    sigmas: list[float] = []

    def keep(step: Step) -> None:
        if step.sigma < LOWEST:
            return
        if step.index == 0:
            progress(sum(map(len, points[0])) if points else 0, count)
        if step.index == len(points):
            points.append([])
            sigmas.append(step.sigma)
        points[step.index].append(step.x.half())

    classes = None if labels is None else labels.tolist()
    images = model.sample(count, seed=seed, classes=classes, batch_size=BATCH, callback=keep, **SAMPLER).array
    return Trajectories(
        torch.stack([torch.cat(parts) for parts in points]),
        torch.tensor(sigmas, device=model.device),
        torch.from_numpy(images).permute(0, 3, 1, 2).to(model.device),
        labels,
    )
