"""A training run and its folder: the checkpoint to resume from, grids of samples, the loss curve, model and metrics."""

import copy
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.distributed import ProcessGroup

from genwright.errors import UserError
from genwright.images.data.dataset import Batches, ImageDataset
from genwright.images.metrics.judge import assess, train_judge
from genwright.images.metrics.lpips import Lpips
from genwright.images.model.checkpoint import Description, describe, load_unet, save_unet
from genwright.images.model.clusters import Clusters, classes_to_clusters
from genwright.images.model.presets import default_channel_mult
from genwright.images.model.unet import UNet, new_unet
from genwright.images.model.unet_config import UNetConfig
from genwright.images.sampling.output import grid, write_whole
from genwright.images.sampling.pipeline import ImageModel
from genwright.images.training.clustering import find_clusters
from genwright.images.training.trainer import Diverged, Trainer
from genwright.images.training.training_settings import ONE_STEP, TWO_STEPS, RunSettings, TrainerSettings

GRID = 90  # images at most
JUDGE_IMAGES = 20_000  # of a streamed data set, to train the judge on; it is tested on a tenth as many held-out ones
StageProgress = Callable[[str, int, int], None]  # called with what is counted, how many are done, and of how many


class TrainingRun:
    """Training into a folder, from the start or from the folder's last checkpoint.

    `shape` has those fields of UNetConfig that should not have their defaults.
    """

    def __init__(
        self,
        data: ImageDataset,
        run: RunSettings,
        settings: TrainerSettings,
        shape: dict[str, Any],
        device: torch.device,
        *,
        rank: int = 0,
        world: int = 1,
        group: ProcessGroup | None = None,
        progress: StageProgress = lambda what, done, total: None,
    ):
        self.run, self.settings, self.device, self.rank = run, settings, device, rank
        self.progress = progress
        self.train: ImageDataset = data
        self.held_out: ImageDataset | None = None
        if run.hold_out and data.labels is not None:
            self.train, self.held_out = data.split(run.hold_out)
        labels, clusters = None, None
        if run.cluster_size is not None:
            labels, clusters = find_clusters(self.train, run.cluster_size)
        size, num_labels = data.images.shape[1], data.num_classes if clusters is None else len(clusters)
        defaults: dict[str, Any] = {
            "image_size": size,
            "num_classes": num_labels,
            "channel_mult": default_channel_mult(size),
        }
        config = UNetConfig(**defaults | shape, dropout=run.dropout)
        start = run.init or run.teacher
        teacher = None if run.teacher is None else _load(run.teacher, config, clusters)
        unet = new_unet(config, settings.seed) if start is None else _load(start, config, clusters, start=True)
        self.description = Description(unet.config, data.label_names, default_sampler(settings), clusters)
        self.trainer = Trainer(
            settings,
            unet,
            Batches(self.train, device, run.balance, run.mirror, labels),
            teacher=teacher,
            lpips=Lpips.load(run.lpips, device) if run.lpips else None,
            rank=rank,
            world=world,
            group=group,
            compiled=run.compile,
            teacher_progress=partial(progress, "the teacher's images"),
        )
        try:
            run.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{run.out} cannot be the run's folder: {error.strerror or error}.") from error
        self.checkpoint = run.out / "checkpoint.pt"
        self._resume()

    def _resume(self) -> None:
        clusters = self.description.clusters
        asked = {"cluster_size": self.run.cluster_size, "clusters": None if clusters is None else clusters.digest}
        asked |= asdict(self.settings) | {"config": asdict(self.trainer.unet.config), "images": len(self.train)}
        self.asked = json.loads(json.dumps(asked))  # as the checkpoint has them
        if not self.checkpoint.is_file():
            return
        try:
            state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            found = json.loads(state["asked"])
        except Exception as error:  # a damaged file can fail anywhere in its parser
            raise UserError(f"{self.checkpoint} cannot be read; delete it or choose another --out.") from error
        there, here = ({**each, **each["config"], "config": None} for each in (found, self.asked))
        for key, value in here.items():
            # A finished run may get more steps, except in progressive distillation, whose stages are shares of all.
            if there.get(key) != value and (key != "steps" or self.settings.method == "progdist"):
                raise UserError(
                    f"{self.run.out} holds another run, whose {key} is {there.get(key)!r} and not {value!r}; "
                    "choose another --out."
                )
        if state["step"] > self.settings.steps:
            raise UserError(
                f"--steps must be at least {state['step']}, the steps that the run in {self.run.out} has taken, not "
                f"{self.settings.steps}."
            )
        self.trainer.load_state_dict(state)

    def __call__(self) -> dict[str, Any]:
        """Train to the end and return the metrics; Ctrl-C saves after the current step."""
        started, complete = time.perf_counter(), self.trainer.step == self.settings.steps
        with deferred_interrupt() as interrupted:

            def after_step(trainer: Trainer) -> bool:
                self.progress("steps", trainer.step, self.settings.steps)
                if self.rank == 0 and trainer.step % self.run.save_every == 0:
                    self.save()
                if self.rank == 0 and trainer.step % self.run.grid_every == 0:
                    self.save_grid(f"step_{trainer.step:06d}")
                return interrupted()

            try:
                self.trainer.run(self.settings.steps, after_step)
                if self.rank == 0:
                    self.save()
            except Diverged:
                raise UserError(self._restore_checkpoint()) from None
            if self.rank == 0:
                self.save_models()
            if interrupted():
                done = f"Stopped after step {self.trainer.step} of {self.settings.steps}, and saved"
                raise KeyboardInterrupt(f"{done}; the same command continues from there." if self.rank == 0 else "")
        if self.rank:
            return {}
        if complete and (measured := self._measured()) is not None:
            return measured
        try:
            return self._results(round(time.perf_counter() - started, 1))
        except KeyboardInterrupt:
            done = f"Stopped after the last step; {self.run.out / 'model'} is complete"
            raise KeyboardInterrupt(f"{done}, and the same command writes the grid and the metrics.") from None

    def _measured(self) -> dict[str, Any] | None:
        """The metrics of this run if it has been finished before; None if they are missing or of fewer steps."""
        try:
            found = json.loads((self.run.out / "metrics.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("steps") == self.settings.steps else None

    def _results(self, seconds: float) -> dict[str, Any]:
        self.save_loss_curve()
        self.save_grid("grid")
        measured: dict[str, float] = {}
        if self.held_out is not None:
            consistency = self.settings.consistency_model
            measured = measure(self.model(), self.train, self.held_out, consistency, self.progress)
        result = {"steps": self.settings.steps, "seconds": seconds, "loss": self.trainer.history[-1][1], **measured}
        write_whole(self.run.out / "metrics.json", lambda path: path.write_text(json.dumps(result, indent=1) + "\n"))
        return result

    def _restore_checkpoint(self) -> str:
        """Return to the last checkpoint, if there is one, write its model, and return the error's sentence."""
        found = f"Training diverged by step {self.trainer.step}: weights or losses are not finite"
        if not self.checkpoint.is_file():
            return f"{found}. There is no checkpoint yet; try a lower --lr than {self.settings.lr:g}."
        if self.rank == 0:
            self.trainer.load_state_dict(torch.load(self.checkpoint, map_location=self.device, weights_only=True))
            self.save_models()
        return (
            f"{found}. {self.run.out / 'model'} holds the weights of the last checkpoint; "
            f"start from them (--init) in another --out with a lower --lr than {self.settings.lr:g}."
        )

    def save_models(self) -> None:
        """Write the averaged weights of every decay; those of the last one are `model`."""
        for decay, ema in zip(self.settings.ema, self.trainer.emas, strict=True):
            name = "model" if ema is self.trainer.ema else f"model_ema_{decay}"
            save_unet(self.run.out / name, ema, self.description, getattr(torch, self.run.save_dtype))

    def save(self) -> None:
        state = self.trainer.state_dict() | {"asked": json.dumps(self.asked)}
        write_whole(self.checkpoint, lambda path: torch.save(state, path))

    def model(self) -> ImageModel:
        """The current averaged weights, ready to sample."""
        unet = copy.deepcopy(self.trainer.ema)
        return ImageModel((unet, self.description), device=str(self.device))

    def save_grid(self, name: str) -> None:
        """Write a grid of samples, every class in turn; of a consistency model also one of one-step samples.

        It has no more images than training has drawn, because on a CPU 90 would take longer than a short training.
        """
        from PIL import Image

        classes = list(range(len(self.description.label_names))) or None
        samplers = [self.description.sampler, ONE_STEP][: 1 + self.settings.consistency_model]
        model = self.model()
        count = min(GRID, self.trainer.step * self.settings.batch_size)
        progress = partial(self.progress, "the grid's images")
        for i, sampler in enumerate(samplers):
            batch = model.sample(count, seed=0, classes=classes, progress=progress, **sampler)
            image = Image.fromarray(grid(batch.array))
            write_whole(self.run.out / f"{name}{'_one_step' * i}.png", partial(image.save, format="png"))

    def save_loss_curve(self) -> None:
        """Draw the loss over the steps as loss.png."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(
            xlabel="step", ylabel=f"{self.settings.method} loss ({self.settings.norm})", yscale="log"
        )
        axes.plot(*zip(*self.trainer.history, strict=True))
        write_whole(self.run.out / "loss.png", lambda path: figure.savefig(path, format="png"))


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Record the first Ctrl-C or SIGTERM, so that only a second one interrupts; yields whether there was one."""
    noted: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        noted.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        restore()


def _load(model: str, config: UNetConfig, clusters: Clusters | None, start: bool = False) -> UNet:
    """Load a UNet of this run's labels and image size; initial weights (`start`) may have classes for its clusters."""
    description = describe(model)
    embeddings = clusters if start and description.clusters is None else None  # to be copied from classes to clusters
    if embeddings is None and description.clusters != clusters:
        raise UserError(f"{model} has other clusters than this run, because its data or its --cluster-size differ.")
    if embeddings is not None:
        config = replace(config, num_classes=embeddings.num_classes)
    unet = load_unet(model, replace(description.config or config, dropout=config.dropout))
    if (unet.config.num_classes, unet.config.image_size) != (config.num_classes, config.image_size):
        raise UserError(f"{model} has other classes or another image size than the data.")
    return unet if embeddings is None else classes_to_clusters(unet, embeddings)


def default_sampler(settings: TrainerSettings) -> dict[str, Any]:
    """The best sampler for a model trained with these settings."""
    if settings.method == "edm":
        return {"sampler": "heun", "steps": 18}
    if settings.method == "progdist":
        return {"sampler": "progdist", "steps": 1}
    return TWO_STEPS


def measure(
    model: ImageModel,
    train: ImageDataset,
    held_out: ImageDataset,
    consistency_model: bool,
    progress: StageProgress = lambda what, done, total: None,
) -> dict[str, float]:
    """Train a judge on the training images (a part of them if streamed), and measure the model's samples with it."""
    train, held_out = train.in_memory(JUDGE_IMAGES), held_out.in_memory(JUDGE_IMAGES // 10)
    samplers = {"own_sampler": model.description.sampler}
    if consistency_model:
        samplers = {"two_steps": TWO_STEPS, "one_step": ONE_STEP}

    def sample(sampler: dict[str, Any], labels: np.ndarray, seed: int) -> np.ndarray:
        tell = partial(progress, "the judged images")
        return model.sample(len(labels), seed=seed, classes=labels.tolist(), progress=tell, **sampler).array

    judge = train_judge(train, model.device, progress=partial(progress, "the judge's steps"))
    return assess(judge, train, held_out, {name: partial(sample, way) for name, way in samplers.items()})
