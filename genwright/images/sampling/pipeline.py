"""ImageModel: from a checkpoint and a seed to uint8 images."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genwright.arguments import one_of, short, whole_number
from genwright.device import pick_device
from genwright.errors import UserError
from genwright.images.model.checkpoint import Description, describe, load_unet
from genwright.images.model.denoiser import Denoiser
from genwright.images.model.presets import unet_config
from genwright.images.model.unet import UNet
from genwright.images.model.unet_config import DTYPES, UNetConfig
from genwright.images.sampling import per_sample_rng
from genwright.images.sampling.editing import SEARCH_SIGMA, Projection, disagreement, edited, task_projection
from genwright.images.sampling.per_sample_rng import Noise
from genwright.images.sampling.runner import Runner
from genwright.images.sampling.sampler_settings import SamplerSettings, sampler_settings
from genwright.images.sampling.samplers import SAMPLERS, Callback, Denoise

# Starts at a noise level low enough to show the known part, with enough steps for the rest to agree with it.
EDIT_SAMPLER = {"sampler": "multistep", "steps": 16, "sigma_max": 5.0}
Progress = Callable[[int, int], None]  # called with the number of images so far and of all
Classes = str | Sequence[int | str] | None  # labels or names, in a list or joined by commas


@dataclass(frozen=True)
class ImageBatch:
    """Images [N, H, W, 3] uint8, labels [N] int64 (class-conditional models only) and the seed they came from."""

    array: np.ndarray
    labels: np.ndarray | None
    seed: int


class ImageModel:
    """A UNet ready to sample.

    `model` is "emoji" (which comes with the package), a folder that `images train` wrote, another checkpoint with
    `preset` or `config`, `random:PRESET[,seed=0]`, or a UNet with its description.
    """

    def __init__(
        self,
        model: str | Path | tuple[UNet, Description] = "emoji",
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
        self.dtype = one_of("dtype", dtype, DTYPES)
        if isinstance(model, str | Path):
            unet, self.description = load_unet(str(model), config or unet_config(preset)), describe(str(model))
        else:
            unet, self.description = model
        self.config = unet.config
        clusters = self.description.clusters
        self.num_classes = self.config.num_classes if clusters is None else clusters.num_classes
        # Large enough to use a GPU fully: a power of two, of at most as many pixels as 256 images of 64 x 64.
        default = max(1, min(64, 2**20 // self.config.image_size**2)) if on_gpu else 4
        size = default if micro_batch is None else whole_number("micro_batch", micro_batch, 1, 2**20)
        self.runner = Runner(unet.use_dtype(getattr(torch, dtype)).to(self.device), size)

    def sample(
        self,
        num_samples: int,
        *,
        seed: int | None = None,
        classes: Classes = None,
        batch_size: int | None = None,
        generator: str = "hash",
        callback: Callback | None = None,
        progress: Progress = lambda done, total: None,
        **settings: Any,
    ) -> ImageBatch:
        """Images 0 to num_samples - 1 of `seed`; `settings` are fields of SamplerSettings, by default the model's own.

        An image depends on the seed and its number only, not on num_samples or batch_size (generator "hash").
        """
        asked = sampler_settings(self.description.sampler, **settings)
        return SampleRun(self, asked, num_samples, seed, classes, generator).all(batch_size, callback, progress)

    def edit(
        self,
        image: Tensor,
        task: str,
        mask: Tensor | None = None,
        num_samples: int = 1,
        *,
        seed: int | None = None,
        classes: Classes = None,
        **settings: Any,
    ) -> ImageBatch:
        """Inpaint, colorize or enlarge `image` [1, 3, H, W] in [-1, 1] (see editing.py), sampled by multistep."""
        if settings.get("sampler") is not None:
            one_of("The sampler of an edit", settings["sampler"], ["multistep"])
        defaults = EDIT_SAMPLER if settings.get("ts") is None else {"sampler": "multistep"}
        image, known = task_projection(task, image, self.config.image_size, mask)
        image = image.to(self.device, torch.float32)
        run = SampleRun(self, sampler_settings(defaults, **settings), num_samples, seed, classes)
        run.choose_labels(image, known)
        run.start, run.wrap = known(image), partial(edited, image=image, known=known)
        return run.all()

    def denoise(self, settings: SamplerSettings, labels: Tensor | None, first: int) -> Denoise:
        """D(x, sigma) of images first, first + 1, ... with labels [N] of the UNet."""
        network = partial(self.runner, first=first)
        denoiser = Denoiser(network, sigma_min=settings.sigma_min, consistency=settings.boundary_condition)

        def denoise(x: Tensor, sigma: float) -> Tensor:
            denoised = denoiser(x, x.new_full((len(x),), sigma), labels)
            return denoised.clamp(-1, 1) if settings.clip_denoised else denoised

        return denoise


class SampleRun:
    """One sampling run: each call samples `count` images from number `first` on; call it in order."""

    def __init__(
        self,
        model: ImageModel,
        settings: SamplerSettings,
        num_samples: int,
        seed: int | None = None,
        classes: Classes = None,
        generator: str = "hash",
        rank: int = 0,
        world: int = 1,
    ):
        self.model, self.settings = model, settings
        self.num_samples = whole_number("num_samples", num_samples, 1, 2**31)
        self.seed = secrets.randbits(32) if seed is None else whole_number("seed", seed, -(2**63), 2**63 - 1)
        self.classes = check_classes(classes, model.num_classes, model.description.label_names)
        self.shape = (3, model.config.image_size, model.config.image_size)
        self.start: Tensor | float = 0.0  # the mean of the noise that sampling starts from
        self.wrap: Callable[[Denoise], Denoise] = lambda denoise: denoise
        self.best_cluster: Tensor | None = None  # of each class, for an edit
        self.stream: Any = None
        if one_of("generator", generator, ("hash", *per_sample_rng.GENERATORS)) != "hash":
            self.stream = per_sample_rng.GENERATORS[generator](self.num_samples, self.seed, model.device, rank, world)

    @torch.no_grad()
    def __call__(self, first: int, count: int, callback: Callback | None = None) -> ImageBatch:
        indices = torch.arange(first, first + count, device=self.model.device)
        labels = self.labels(indices)
        noise = self.noise(indices)
        denoise = self.wrap(self.model.denoise(self.settings, self.clusters(labels, indices), first))
        sampler = SAMPLERS[self.settings.sampler]
        x = self.start + noise() * self.settings.sigmas[0]
        x = sampler(denoise, x, self.settings.sigmas, noise, self.settings.churn, callback or (lambda step: None))
        return ImageBatch(to_uint8(x), None if labels is None else labels.cpu().numpy(), self.seed)

    def all(
        self,
        batch_size: int | None = None,
        callback: Callback | None = None,
        progress: Progress = lambda done, total: None,
    ) -> ImageBatch:
        """Images 0 to num_samples - 1, batch by batch."""
        count, size = self.num_samples, self.batch_size(batch_size)
        batches = []
        for first in range(0, count, size):
            progress(first, count)
            batches.append(self(first, min(size, count - first), callback))
        progress(count, count)
        labels = [batch.labels for batch in batches if batch.labels is not None]
        array = np.concatenate([batch.array for batch in batches])
        return ImageBatch(array, np.concatenate(labels) if labels else None, self.seed)

    def batch_size(self, asked: int | None) -> int:
        """The number of images of a batch."""
        return self.model.runner.micro_batch if asked is None else whole_number("batch_size", asked, 1, 2**31)

    def labels(self, indices: Tensor) -> Tensor | None:
        """Each image's class label: `classes` in turn, or drawn from hash(seed, i)."""
        if self.model.num_classes is None:
            return None
        if self.classes:
            return torch.tensor(self.classes, device=indices.device)[indices % len(self.classes)]
        return per_sample_rng.hash_labels(self.seed, indices, self.model.num_classes)

    def clusters(self, labels: Tensor | None, indices: Tensor) -> Tensor | None:
        """The UNet's label of each image: its class, or a cluster of its class, drawn from hash(seed, i)."""
        clusters = self.model.description.clusters
        if labels is not None and self.best_cluster is not None:
            return self.best_cluster[labels]
        if clusters is None or labels is None:
            return labels
        return clusters.draw(labels, per_sample_rng.hash_words(self.seed, indices, 0, per_sample_rng.CLUSTER, 1)[:, 0])

    @torch.no_grad()
    def choose_labels(self, image: Tensor, known: Projection) -> None:
        """For an edit, use the cluster of each class, or the class if none is given, that fits the known part best."""
        num_labels, clusters, device = self.model.config.num_classes, self.model.description.clusters, self.model.device
        if num_labels is None or (clusters is None and self.classes):
            return
        classes = range(num_labels) if clusters is None else clusters.classes
        labels = [label for label, of in enumerate(classes) if not self.classes or of in self.classes]
        denoise = self.model.denoise(self.settings, torch.tensor(labels, device=device), 0)
        # The same noise for all labels and seeds, so that the choice depends on the image only.
        noise = per_sample_rng.hash_normal(0, torch.zeros(1, dtype=torch.long, device=device), 0, self.shape)
        sigma = min(SEARCH_SIGMA, self.settings.sigma_max)
        far = disagreement(denoise, image, known, noise.expand(len(labels), -1, -1, -1), sigma)
        best = [labels[i] for i in far.argsort(descending=True).tolist()]
        nearest = {classes[label]: label for label in best}
        self.best_cluster = torch.tensor([nearest.get(of, 0) for of in range(classes[-1] + 1)], device=device)
        self.classes = self.classes or [classes[best[-1]]]

    def noise(self, indices: Tensor) -> Noise:
        stream = self.stream
        if stream is None:
            return Noise(lambda draw: per_sample_rng.hash_normal(self.seed, indices, draw, self.shape))
        return Noise(lambda draw: stream.randn(len(indices), *self.shape), stateful=True)


def to_uint8(x: Tensor) -> np.ndarray:
    """[-1, 1] to 0..255, rounded down as in the original: [N, 3, H, W] -> [N, H, W, 3]."""
    return ((x + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def check_classes(classes: Any, num_classes: int | None, names: Sequence[str] = ()) -> list[int] | None:
    """The labels of classes given by number or name, in a list or joined by commas; None if they should be drawn."""
    if classes is None:
        return None
    try:
        asked = classes.split(",") if isinstance(classes, str) else list(classes)
    except TypeError:
        raise UserError(f"classes must be a list of labels or names, not {short(classes)}.") from None
    if asked and num_classes is None:
        raise UserError("This model has no classes to choose from.")
    return [_label(word, num_classes or 0, names) for word in asked] or None


def _label(word: Any, num_classes: int, names: Sequence[str]) -> int:
    known = {name.lower(): label for label, name in enumerate(names)}
    text = word.strip().lower() if isinstance(word, str) else ""
    if text in known:
        return known[text]
    if isinstance(word, str) and not text.removeprefix("-").isdecimal():
        these = ", ".join(names) or f"the numbers 0 to {num_classes - 1}"
        raise UserError(f"There is no class {short(word.strip())}; this model's are {these}.")
    return whole_number("A class label", int(text[:20]) if text else word, 0, num_classes - 1)
