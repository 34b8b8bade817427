"""The settings of a training run; imports no torch, because the command line reads its flags from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.arguments import check_settings, setting
from genwright.errors import UserError
from genwright.images.model.unet_config import DTYPES

METHODS = ("edm", "consistency", "distill", "progdist", "dmd")
SCHEDULES = ("adaptive", "ect")
OPTIMIZERS = ("adamw", "radam")
MOST = 2**40
# Levels 0, 20 and 39 of 40 are sigma 80, 2.2 and 0.002: more is redrawn than from easy consistency tuning's 0.82.
TWO_STEPS: dict[str, Any] = {"sampler": "multistep", "steps": 40, "ts": (0, 20, 39)}
ONE_STEP: dict[str, Any] = {"sampler": "onestep"}


@dataclass(frozen=True)
class TrainerSettings:
    """How a model is trained; None stands for the method's own default."""

    method: str = setting("edm", "edm, consistency, distill, progdist or dmd.", choices=METHODS)
    steps: int = setting(10_000, "Optimizer steps.", between=(1, MOST))
    batch_size: int = setting(256, "Images per step, over all ranks.", between=(1, MOST))
    accumulate: int = setting(1, "Micro-batches per step and rank.", between=(1, MOST))
    lr: float = setting(1e-4, "Learning rate.", between=(1e-12, 1e3))
    warmup: int = setting(0, "Steps over which the learning rate rises.", between=(0, MOST))
    anneal: float = setting(
        0.0, "Share of the steps, at the end, over which the learning rate falls to 0.", between=(0.0, 1.0)
    )
    weight_decay: float = setting(0.0, "Weight decay of the optimizer.", between=(0.0, 1e3))
    optimizer: str = setting("adamw", "adamw, or radam as in the original.", choices=OPTIMIZERS)
    beta1: float = setting(0.9, "Decay of the optimizer's mean gradient.", between=(0.0, 1 - 1e-9))
    beta2: float = setting(0.99, "Decay of the optimizer's mean squared gradient.", between=(0.0, 1 - 1e-9))
    ema: tuple[float, ...] = setting(
        (0.999,), "Decay of the averaged weights; of several, joined by commas, the last is the model.", commas=True
    )
    ema_warmup: bool = setting(True, "Average over fewer steps at the start.")
    dtype: str = setting("float32", "float32, or float16 or bfloat16 for mixed precision.", choices=DTYPES)
    schedule: str = setting("ect", "consistency: ect, or adaptive as in the original.", choices=SCHEDULES)
    first_stage: int = setting(
        0, "ect: the first stage; each stage halves the gap between noise levels.", between=(0, 100)
    )
    stages: int = setting(8, "ect: number of stages.", between=(1, 100))
    start_scales: int | None = setting(
        None, "Noise levels at the start; progdist: sampling steps at the start.", between=(1, MOST)
    )
    end_scales: int = setting(150, "adaptive: noise levels at the end.", between=(1, MOST))
    start_ema: float = setting(
        0.95, "Decay of the target's weights (adaptive: at the start).", between=(1e-9, 1 - 1e-9)
    )
    pairs: int = setting(8192, "dmd: images to sample from the teacher, each kept with its noise.", between=(1, MOST))
    keep: float = setting(
        0.5, "dmd: weight of the distance between a sample and the teacher's image.", between=(0.0, 1e6)
    )
    loss_norm: str | None = setting(None, "l1, l2, l2-32, pseudo-huber or lpips.")
    weighting: str | None = setting(None, "Loss weight by noise level: karras, snr, snr+1, truncated-snr or uniform.")
    p_mean: float | None = setting(None, "edm, ect: mean of ln sigma.", between=(-20.0, 20.0))
    p_std: float | None = setting(None, "edm, ect: standard deviation of ln sigma.", between=(1e-6, 20.0))
    sigma_min: float = setting(0.002, "Lowest noise level.", between=(1e-6, 1e6))
    sigma_max: float = setting(80.0, "Highest noise level.", between=(1e-6, 1e6))
    rho: float = setting(7.0, "Exponent of the Karras schedule.", between=(0.05, 1e3))
    seed: int = setting(0, "Seed of everything that is drawn.", between=(-(2**63), 2**63 - 1))

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.ema or not all(0 <= decay < 1 for decay in self.ema):
            raise UserError("Every ema must be 0 or more and below 1.")
        if len(set(self.ema)) < len(self.ema):
            raise UserError("The ema decays must differ, because one model is written for each.")
        if not 0 <= self.first_stage < self.stages:
            raise UserError(f"first_stage must be between 0 and {self.stages - 1}, not {self.first_stage}.")
        if not self.sigma_min < self.sigma_max:
            raise UserError(f"sigma_min must be below sigma_max, {self.sigma_max}, not {self.sigma_min}.")
        if self.method == "progdist":
            self.progressive_stage(0)

    @property
    def easy_consistency_tuning(self) -> bool:
        return self.method == "consistency" and self.schedule == "ect"

    @property
    def has_teacher(self) -> bool:
        return self.method in ("distill", "progdist", "dmd")

    @property
    def consistency_model(self) -> bool:
        """Whether D(x, sigma_min) = x, so that the model samples in one or two steps."""
        return self.method in ("consistency", "distill", "dmd")

    @property
    def scales(self) -> int:
        """Noise levels (progdist: sampling steps) at the start; the original's where none are given."""
        return self.start_scales or {"consistency": 2, "distill": 40}.get(self.method, 64)

    @property
    def norm(self) -> str:
        return self.loss_norm or ("pseudo-huber" if self.easy_consistency_tuning else "l2")

    @property
    def loss_weighting(self) -> str:
        defaults = {"edm": "karras", "dmd": "karras", "progdist": "truncated-snr"}
        return self.weighting or defaults.get(self.method, "uniform")

    @property
    def log_sigma(self) -> tuple[float, float]:
        """Mean and standard deviation of ln sigma."""
        mean, std = (-1.1, 2.0) if self.easy_consistency_tuning else (0.0, 1.5) if self.method == "dmd" else (-1.2, 1.2)
        return mean if self.p_mean is None else self.p_mean, std if self.p_std is None else self.p_std

    def progressive_stage(self, step: int) -> tuple[int, int]:
        """progdist: the student's current number of sampling steps (scales, halved to 1), and the length of a stage."""
        if self.scales < 1 or self.scales & (self.scales - 1):
            raise UserError(
                f"start_scales must be a power of 2, not {self.scales}, because progressive distillation halves it."
            )
        length = max(1, self.steps // self.scales.bit_length())
        return max(1, self.scales >> step // length), length

    def lr_at(self, step: int) -> float:
        """Rises over `warmup` steps, and falls to 0 over the last `anneal` of all steps (progdist: of every stage)."""
        length = self.steps
        if self.method == "progdist":
            length = self.progressive_stage(step)[1]
            step %= length
        up = min(1.0, (step + 1) / (self.warmup + 1))
        down = min(1.0, (length - step) / (self.anneal * length)) if self.anneal else 1.0
        return self.lr * up * down


@dataclass(frozen=True)
class RunSettings:
    """A run's data, initial weights and files; TrainerSettings says how it trains."""

    out: Path = setting(Path("training"), "Folder of the run; a stopped run continues there.")
    init: str | None = setting(None, "Model to take the initial weights from.")
    teacher: str | None = setting(None, "Model that distill, progdist and dmd learn from.")
    lpips: tuple[Path, ...] = setting(
        (), "Weights for lpips, once for torchvision's VGG-16 file and once for the heads of lpips or piq."
    )
    hold_out: float = setting(
        0.1, "Share of the names to hold out and measure with; 0 holds out none.", between=(0.0, 1 - 1e-9)
    )
    balance: float = setting(
        0.5, "Draw images with probability 1 / (size of their class) ** BALANCE.", between=(0.0, 10.0)
    )
    mirror: tuple[str, ...] = setting(
        (), "Classes, joined by commas, whose images are mirrored at random; or all.", commas=True
    )
    cluster_size: int | None = setting(
        None,
        "Split classes into clusters of at most this many similar images, and train the model on clusters.",
        between=(1, MOST),
    )
    dropout: float = setting(0.0, "Share of the activations to drop.", between=(0.0, 1.0))
    save_every: int = setting(1000, "Steps between checkpoints.", between=(1, MOST))
    grid_every: int = setting(1000, "Steps between grids of samples.", between=(1, MOST))
    save_dtype: str = setting(
        "float16", "Data type of the saved weights: float32, float16 or bfloat16.", choices=DTYPES
    )
    compile: bool = setting(False, "Compile the UNet; saves time on a GPU.")

    def __post_init__(self) -> None:
        check_settings(self)
