"""Samples of a teacher, with the states that its sampler went through: what a student of few steps is trained on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genwright.images.data.dataset import Batches
from genwright.images.model.checkpoint import Description
from genwright.images.model.unet import UNet
from genwright.images.sampling.pipeline import ImageModel, Progress
from genwright.images.sampling.samplers import Step

SAMPLER: dict[str, Any] = {"sampler": "heun", "steps": 18}
LOWEST = 0.5  # states below this sigma are not kept, because they are nearly the image
BATCH = 256


@dataclass(frozen=True)
class TeacherSamples:
    """Images, and the sampler's states at each noise level on the way to them."""

    states: Tensor  # [levels, N, 3, H, W] float16; level 0 is pure noise
    sigmas: Tensor  # [levels]
    images: Tensor  # [N, 3, H, W] uint8
    labels: Tensor | None

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """States [count, 3, H, W], their sigmas, images in [-1, 1] and labels; half of the states are pure noise."""
        device = self.states.device
        row = torch.randint(self.states.shape[1], (count,), device=device)
        level = torch.randint(len(self.sigmas), (count,), device=device)
        level[: count // 2] = 0
        labels = None if self.labels is None else self.labels[row]
        images = (self.images[row].float() + 0.5) / 127.5 - 1
        return self.states[level, row].float(), self.sigmas[level], images, labels


def sample_teacher(
    teacher: UNet,
    batches: Batches,
    count: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> TeacherSamples:
    """Sample `count` images with labels drawn as `batches` draws them."""
    labels = None
    if batches.labels is not None:
        torch.manual_seed(seed)
        labels = batches.labels[torch.multinomial(batches.weights, count, replacement=True)]
    model = ImageModel((teacher, Description(teacher.config)), device=str(batches.device))
    states: list[list[Tensor]] = []
    sigmas: list[float] = []

    def keep(step: Step) -> None:
        if step.sigma < LOWEST:
            return
        if step.index == len(states):
            states.append([])
            sigmas.append(step.sigma)
        states[step.index].append(step.x.half())

    classes = None if labels is None else labels.tolist()
    batch = model.sample(
        count, seed=seed, classes=classes, batch_size=BATCH, callback=keep, progress=progress, **SAMPLER
    )
    return TeacherSamples(
        torch.stack([torch.cat(parts) for parts in states]),
        torch.tensor(sigmas, device=model.device),
        torch.from_numpy(batch.array).permute(0, 3, 1, 2).to(model.device),
        labels,
    )
