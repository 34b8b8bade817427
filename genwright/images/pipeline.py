"""ImageModel: from a checkpoint and a seed to uint8 images."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genwright.device import pick_device
from genwright.errors import UserError
from genwright.images import schedules, seeds
from genwright.images.checkpoint import Description, describe, load_unet
from genwright.images.denoiser import Denoiser
from genwright.images.editing import edited, task_projection
from genwright.images.presets import unet_config
from genwright.images.runner import Runner
from genwright.images.samplers import SAMPLERS, Callback, Churn, Denoise
from genwright.images.seeds import Noise
from genwright.images.unet import UNet, UNetConfig

CONSISTENCY_SAMPLERS = ("onestep", "multistep")
SCHEDULES = ("karras", "exponential", "vp")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class SamplerSettings:
    """How images are sampled, in the original's words; checks itself."""

    sampler: str = "heun"
    steps: int = 40
    ts: tuple[int, ...] | None = None
    schedule: str = "karras"
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = float("inf")
    s_noise: float = 1.0
    clip_denoised: bool = True
    # Whether the model was trained with the consistency boundary condition; None: as the sampler suggests.
    consistency: bool | None = None

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(f"There is no sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}.")
        if self.schedule not in SCHEDULES:
            raise UserError(f"There is no schedule {self.schedule!r}; choose one of {', '.join(SCHEDULES)}.")
        if self.steps < 1:
            raise UserError(f"Sampling takes one step or more, not {self.steps}.")
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            raise UserError(
                f"sigma_min and sigma_max must rise from above 0, not {self.sigma_min} to {self.sigma_max}."
            )
        if not 0 < self.rho < math.inf:
            raise UserError(f"rho must be positive, not {self.rho}.")
        if not self.s_churn >= 0:
            raise UserError(f"s_churn must not be negative, but is {self.s_churn}.")
        if (self.sampler == "multistep") != (self.ts is not None):
            raise UserError("The multistep sampler, and no other, takes ts, such as 0,22,39 for steps 40.")
        _ = self.sigmas  # which checks ts

    @cached_property
    def sigmas(self) -> list[float]:
        """The noise levels that the sampler goes down."""
        if self.ts is not None:
            return schedules.multistep(self.ts, self.steps, self.sigma_min, self.sigma_max, self.rho)
        # Progressive distillation's steps lead to sigma_min; the others' last step leads from there to 0.
        levels, end = (self.steps + 1, []) if self.sampler == "progdist" else (self.steps, [0.0])
        if self.schedule == "vp":
            return schedules.vp(levels) + end
        if self.schedule == "exponential":
            return schedules.exponential(levels, self.sigma_min, self.sigma_max) + end
        return schedules.karras(levels, self.sigma_min, self.sigma_max, self.rho) + end

    @property
    def boundary_condition(self) -> bool:
        """Whether D(x, sigma_min) = x."""
        return self.sampler in CONSISTENCY_SAMPLERS if self.consistency is None else self.consistency

    @property
    def churn(self) -> Churn:
        return Churn(self.s_churn, self.s_tmin, self.s_tmax, self.s_noise)


@dataclass(frozen=True)
class ImageBatch:
    """Images [N, H, W, 3] uint8, labels [N] int64 (class-conditional models only) and the seed they came from."""

    array: np.ndarray
    labels: np.ndarray | None
    seed: int


class ImageModel:
    """A UNet ready to sample.

    `model` is "emoji" (the one in the box), what `images train` wrote, another checkpoint with `preset` or `config`,
    `random:PRESET[,seed=0]`, or a UNet with its description.
    """

    def __init__(
        self,
        model: str | tuple[UNet, Description] = "emoji",
        *,
        preset: str | None = None,
        config: UNetConfig | None = None,
        device: str = "auto",
        dtype: str = "auto",
        micro_batch: int | None = None,
    ):
        self.device = pick_device(device)
        on_gpu = self.device.type == "cuda"
        if dtype == "auto":
            dtype = "float16" if on_gpu else "float32"  # the published models ran in float16
        if dtype not in DTYPES:
            raise UserError(f"There is no dtype {dtype!r} for images; choose one of {', '.join(DTYPES)}.")
        if micro_batch is not None and micro_batch < 1:
            raise UserError(f"A micro-batch holds one image or more, not {micro_batch}.")
        self.dtype = dtype
        if isinstance(model, str):
            unet, self.description = load_unet(model, config or unet_config(preset)), describe(model)
        else:
            unet, self.description = model
        self.config = unet.config
        clusters = self.description.clusters
        self.num_classes = self.config.num_classes if clusters is None else clusters.num_classes
        # As large as a GPU needs to be busy; a power of two, at most as many pixels as 256 images of 64 x 64 have.
        usual = max(1, min(64, 2**20 // self.config.image_size**2)) if on_gpu else 4
        self.runner = Runner(unet.use_dtype(DTYPES[dtype]).to(self.device), micro_batch or usual)

    def sample(
        self,
        num_samples: int,
        *,
        seed: int | None = None,
        classes: Sequence[int] | None = None,
        batch_size: int | None = None,
        generator: str = "hash",
        callback: Callback | None = None,
        **settings: Any,
    ) -> ImageBatch:
        """Images 0 to num_samples - 1 of `seed`; `settings` are SamplerSettings' fields, None for the model's default.

        An image depends on the seed and its number alone, not on num_samples or batch_size (generator "hash").
        """
        run = SampleRun(self, sampler_settings(self.description, **settings), num_samples, seed, classes, generator)
        return run.all(num_samples, check_batch_size(batch_size), callback)

    def edit(
        self,
        image: Tensor,
        task: str,
        mask: Tensor | None = None,
        num_samples: int = 1,
        *,
        seed: int | None = None,
        classes: Sequence[int] | None = None,
        **settings: Any,
    ) -> ImageBatch:
        """Ways to paint in, colour or enlarge `image` [1, 3, H, W] in [-1, 1] (see editing.py); multistep settings."""
        image, mask = image.to(self.device), None if mask is None else mask.to(self.device)
        image, known = task_projection(task, image, self.config.image_size, mask)
        run = SampleRun(self, SamplerSettings(sampler="multistep", **settings), num_samples, seed, classes)
        run.wrap = partial(edited, image=image, known=known)
        return run.all(num_samples)

    def denoise(self, settings: SamplerSettings, labels: Tensor | None, first: int) -> Denoise:
        """D(x, sigma) for images first, first + 1, ... with the UNet's labels [N] for them."""
        network = partial(self.runner, first=first)
        denoiser = Denoiser(network, sigma_min=settings.sigma_min, consistency=settings.boundary_condition)

        def denoise(x: Tensor, sigma: float) -> Tensor:
            denoised = denoiser(x, x.new_full((len(x),), sigma), labels)
            return denoised.clamp(-1, 1) if settings.clip_denoised else denoised

        return denoise


class SampleRun:
    """One sampling run: called with the number of its first image and a count, in order."""

    def __init__(
        self,
        model: ImageModel,
        settings: SamplerSettings,
        num_samples: int,
        seed: int | None = None,
        classes: Sequence[int] | None = None,
        generator: str = "hash",
        rank: int = 0,
        world: int = 1,
    ):
        if num_samples < 1:
            raise UserError(f"The number of samples must be positive, not {num_samples}.")
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise UserError(f"A seed is a number of 64 bits, which {seed} is not.")
        seeds.check_generator(generator)
        self.model, self.settings, self.classes = model, settings, check_classes(classes, model.num_classes)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.shape = (3, model.config.image_size, model.config.image_size)
        self.wrap: Callable[[Denoise], Denoise] = lambda denoise: denoise
        self.stream: Any = None
        if generator != "hash":
            self.stream = seeds.GENERATORS[generator](num_samples, self.seed, model.device, rank, world)

    @torch.no_grad()
    def __call__(self, first: int, count: int, callback: Callback | None = None) -> ImageBatch:
        indices = torch.arange(first, first + count, device=self.model.device)
        labels = self.labels(indices)
        noise = self.noise(indices)
        denoise = self.wrap(self.model.denoise(self.settings, self.clusters(labels, indices), first))
        sampler = SAMPLERS[self.settings.sampler]
        x = noise() * self.settings.sigmas[0]
        x = sampler(denoise, x, self.settings.sigmas, noise, self.settings.churn, callback)
        return ImageBatch(to_uint8(x), None if labels is None else labels.cpu().numpy(), self.seed)

    def all(self, num_samples: int, batch_size: int | None = None, callback: Callback | None = None) -> ImageBatch:
        """Images 0 to num_samples - 1, batch by batch."""
        size = batch_size or self.model.runner.micro_batch
        batches = [self(first, min(size, num_samples - first), callback) for first in range(0, num_samples, size)]
        labels = [batch.labels for batch in batches if batch.labels is not None]
        array = np.concatenate([batch.array for batch in batches])
        return ImageBatch(array, np.concatenate(labels) if labels else None, self.seed)

    def labels(self, indices: Tensor) -> Tensor | None:
        """Each image's class label: `classes` in turn, or drawn from hash(seed, i)."""
        if self.model.num_classes is None:
            return None
        if self.classes:
            return torch.tensor(self.classes, device=indices.device)[indices % len(self.classes)]
        return seeds.hash_labels(self.seed, indices, self.model.num_classes)

    def clusters(self, labels: Tensor | None, indices: Tensor) -> Tensor | None:
        """What the UNet is told of each image: its label, or one of the class's clusters, drawn from hash(seed, i)."""
        clusters = self.model.description.clusters
        if clusters is None or labels is None:
            return labels
        return clusters.draw(labels, seeds.hash_words(self.seed, indices, 0, seeds.CLUSTER, 1)[:, 0])

    def noise(self, indices: Tensor) -> Noise:
        stream = self.stream
        if stream is None:
            return Noise(lambda draw: seeds.hash_normal(self.seed, indices, draw, self.shape))
        return Noise(lambda draw: stream.randn(len(indices), *self.shape), stateful=True)


def sampler_settings(description: Description, **settings: Any) -> SamplerSettings:
    """The settings; what is None comes from the model's own sampler, if no other is asked for, else is as usual."""
    own = description.sampler if settings.get("sampler") is None else {}
    return SamplerSettings(**own | {name: value for name, value in settings.items() if value is not None})


def to_uint8(x: Tensor) -> np.ndarray:
    """[-1, 1] to 0..255, rounding down as the original does: [N, 3, H, W] -> [N, H, W, 3]."""
    return ((x + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def check_classes(classes: Sequence[int] | None, num_classes: int | None) -> list[int] | None:
    """The class labels to take in turn; None if they are to be drawn."""
    if not classes:
        return None
    if num_classes is None:
        raise UserError("This model has no classes to choose from.")
    for label in classes:
        if not 0 <= label < num_classes:
            raise UserError(f"Class {label} is out of range: this model's labels are 0 to {num_classes - 1}.")
    return list(classes)


def check_batch_size(batch_size: int | None) -> int | None:
    """`batch_size` itself, if it is one."""
    if batch_size is not None and batch_size < 1:
        raise UserError(f"A batch holds one image or more, not {batch_size}.")
    return batch_size
