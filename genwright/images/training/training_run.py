"""A training run and its folder: checkpoint.pt to go on from, grids, the loss curve, the model and its metrics."""

import copy
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genwright.errors import UserError
from genwright.images.data.dataset import Batches, TrainingImages, read_data
from genwright.images.metrics.judge import assess, train_judge
from genwright.images.metrics.lpips import Lpips
from genwright.images.model.checkpoint import Description, describe, load_unet, save_unet
from genwright.images.model.clusters import Clusters, find_clusters, told_clusters
from genwright.images.model.unet import UNet, UNetConfig, new_unet
from genwright.images.sampling.output import grid, write_whole
from genwright.images.sampling.pipeline import ImageModel
from genwright.images.training.trainer import Diverged, Trainer
from genwright.images.training.trainer_settings import ONE_STEP, TWO_STEPS, TrainSettings

GRID = 90  # images
JUDGED = 20_000  # streamed images that are judged by, and a tenth as many held-out ones


@dataclass(frozen=True)
class RunSettings:
    """What a run is besides its training: its data, where it starts, and what it writes."""

    data: Path
    out: Path
    image_size: int | None = None
    hold_out: float = 0.1
    balance: float = 0.5
    mirror: tuple[str, ...] = ()
    cluster_size: int | None = None
    init: str | None = None
    teacher: str | None = None
    lpips: tuple[Path, ...] = ()
    save_every: int = 1000
    grid_every: int = 1000
    save_dtype: torch.dtype = torch.float16


class TrainRun:
    """Training into a folder, from the start or from where the folder's own run was."""

    def __init__(
        self,
        run: RunSettings,
        settings: TrainSettings,
        shape: Callable[[int, int | None], UNetConfig],
        device: torch.device,
        *,
        rank: int = 0,
        world: int = 1,
        compiled: bool = False,
        tracing: Callable[[int, int], None] = lambda done, total: None,
    ):
        self.run, self.settings, self.device, self.rank = run, settings, device, rank
        data = read_data(run.data, run.image_size)
        self.train: TrainingImages = data
        self.held: TrainingImages | None = None
        if run.hold_out and data.labels is not None:
            self.train, self.held = data.split(run.hold_out)
        labels, clusters = None, None
        if run.cluster_size is not None:
            labels, clusters = find_clusters(self.train, run.cluster_size)
        config = shape(data.images.shape[1], data.num_classes if clusters is None else len(clusters))
        start = run.init or run.teacher
        teacher = None if run.teacher is None else _load(run.teacher, config, clusters)
        unet = new_unet(config, settings.seed) if start is None else _load(start, config, clusters, start=True)
        self.description = Description(unet.config, data.label_names, default_sampler(settings), clusters)
        batches = Batches(self.train, device, run.balance, run.mirror, labels)
        lpips = Lpips.load(run.lpips, device) if run.lpips else None
        self.trainer = Trainer(
            settings,
            unet,
            batches,
            teacher=teacher,
            lpips=lpips,
            rank=rank,
            world=world,
            compiled=compiled,
            tracing=tracing,
        )
        try:
            run.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{run.out} cannot be the run's folder: {error.strerror or error}.") from error
        self.checkpoint = run.out / "checkpoint.pt"
        self._resume()

    def _resume(self) -> None:
        asked = json.loads(json.dumps(asdict(self.settings) | {"config": asdict(self.trainer.unet.config)}))
        clusters = self.description.clusters
        self.asked = {
            "cluster_size": self.run.cluster_size,
            "clusters": None if clusters is None else clusters.digest,
        } | asked
        self.asked |= {"images": len(self.train)}
        if not self.checkpoint.is_file():
            return
        try:
            state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            found = json.loads(state["asked"])
        except Exception as error:  # a damaged file can fail anywhere in its parser
            raise UserError(f"{self.checkpoint} cannot be read; delete it or choose another --out.") from error
        for key, value in self.asked.items():
            # A run may be made longer; but progressive distillation's stages are shares of all steps.
            if found.get(key) != value and (key != "steps" or self.settings.method == "progdist"):
                raise UserError(
                    f"{self.run.out} holds another run, whose {key} is {found.get(key)!r} and not {value!r}; "
                    "choose another --out."
                )
        if state["step"] > self.settings.steps:
            raise UserError(
                f"{self.run.out} holds a run that has taken {state['step']} steps already, more than --steps "
                f"{self.settings.steps}."
            )
        self.trainer.load_state_dict(state)

    def __call__(self, advance: Callable[[int, int], None]) -> dict[str, Any]:
        """Train to the end, and return the metrics; an interrupt saves first, after the step that is running."""
        started = time.perf_counter()
        with first_interrupt_noted() as interrupted:

            def after_step(trainer: Trainer) -> bool:
                advance(trainer.step, self.settings.steps)
                if self.rank == 0 and trainer.step % self.run.save_every == 0:
                    self.save()
                if self.rank == 0 and trainer.step % self.run.grid_every == 0:
                    self.picture(f"step_{trainer.step:06d}")
                return interrupted()

            try:
                self.trainer.run(self.settings.steps, after_step)
                if self.rank == 0:
                    self.save()
            except Diverged:
                raise UserError(self._restored()) from None
            if self.rank == 0:
                self.save_models()
            if interrupted():
                done = f"Stopped after step {self.trainer.step} of {self.settings.steps}, and saved"
                raise KeyboardInterrupt(f"{done}; the same command goes on from there." if self.rank == 0 else "")
        if self.rank:
            return {}
        seconds = time.perf_counter() - started
        self.curve()
        self.picture("grid")
        result = {"steps": self.settings.steps, "seconds": round(seconds, 1), "loss": self.trainer.history[-1][1]}
        if self.held is not None:
            result |= measure(self.model(), self.train, self.held, self.settings.few_steps)
        write_whole(self.run.out / "metrics.json", lambda path: path.write_text(json.dumps(result, indent=1) + "\n"))
        return result

    def _restored(self) -> str:
        """Go back to the last checkpoint, if there is one, write its model, and say what happened."""
        found = f"The run has diverged by step {self.trainer.step}: its weights or losses are not finite"
        if not self.checkpoint.is_file():
            return f"{found}. No checkpoint was saved before; a lower --lr than {self.settings.lr:g} may help."
        if self.rank == 0:
            self.trainer.load_state_dict(torch.load(self.checkpoint, map_location=self.device, weights_only=True))
            self.save_models()
        return (
            f"{found}. {self.run.out / 'model'} holds the weights of the last checkpoint; "
            f"begin with them (--init) in another --out, with a lower --lr than {self.settings.lr:g}."
        )

    def save_models(self) -> None:
        """Write every average of the weights; `model` is that of the last decay."""
        for decay, ema in zip(self.settings.ema, self.trainer.emas, strict=True):
            name = "model" if ema is self.trainer.ema else f"model_ema_{decay}"
            save_unet(self.run.out / name, ema, self.description, self.run.save_dtype)

    def save(self) -> None:
        state = self.trainer.state_dict() | {"asked": json.dumps(self.asked)}
        write_whole(self.checkpoint, lambda path: torch.save(state, path))

    def model(self) -> ImageModel:
        """The averaged weights as they are now, ready to sample."""
        unet = copy.deepcopy(self.trainer.ema)
        return ImageModel((unet, self.description), device=str(self.device))

    def picture(self, name: str) -> None:
        """A grid of samples of every class in turn, and one of one-step samples where the model can do that."""
        from PIL import Image

        classes = list(range(len(self.description.label_names))) or None
        ways = [self.description.sampler]
        if self.settings.few_steps:
            ways.append(ONE_STEP)
        model = self.model()
        for i, way in enumerate(ways):
            images = Image.fromarray(grid(model.sample(GRID, seed=0, classes=classes, **way).array))
            write_whole(self.run.out / f"{name}{'_one_step' * i}.png", partial(images.save, format="png"))

    def curve(self) -> None:
        """The loss over the steps, as loss.png."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(
            xlabel="step", ylabel=f"{self.settings.method} loss ({self.settings.norm})", yscale="log"
        )
        axes.plot(*zip(*self.trainer.history, strict=True))
        write_whole(self.run.out / "loss.png", lambda path: figure.savefig(path, format="png"))


@contextmanager
def first_interrupt_noted() -> Iterator[Callable[[], bool]]:
    """Whether there was a Ctrl-C or SIGTERM yet: the first one only is noted, the second does what it always does."""
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
    """A UNet of this run's labels and image size, with its dropout; a start of classes is told their clusters."""
    said = describe(model)
    told = clusters if start and said.clusters is None else None
    if told is None and said.clusters != clusters:
        raise UserError(
            f"{model} is a model of other clusters than this run's: it had other data or another --cluster-size."
        )
    if told is not None:
        config = replace(config, num_classes=told.num_classes)
    unet = load_unet(model, replace(said.config or config, dropout=config.dropout))
    if (unet.config.num_classes, unet.config.image_size) != (config.num_classes, config.image_size):
        raise UserError(f"{model} is a model of other classes or another image size than the data have.")
    return unet if told is None else told_clusters(unet, told)


def default_sampler(settings: TrainSettings) -> dict[str, Any]:
    """How a model trained like this is best sampled."""
    if settings.method == "edm":
        return {"sampler": "heun", "steps": 18}
    if settings.method == "progdist":
        return {"sampler": "progdist", "steps": 1}
    return TWO_STEPS


def measure(model: ImageModel, train: TrainingImages, held: TrainingImages, few_steps: bool) -> dict[str, float]:
    """Train a judge on the training images (of streamed ones, some) and let it assess the model's samples."""
    train, held = train.in_memory(JUDGED), held.in_memory(JUDGED // 10)
    ways = {"two_steps": TWO_STEPS, "one_step": ONE_STEP} if few_steps else {"own_sampler": model.description.sampler}

    def sample(way: dict[str, Any], labels: np.ndarray, seed: int) -> np.ndarray:
        return model.sample(len(labels), seed=seed, classes=labels.tolist(), **way).array

    return assess(
        train_judge(train, model.device), train, held, {name: partial(sample, way) for name, way in ways.items()}
    )
