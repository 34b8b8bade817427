"""How a model is trained, as one value that checks itself."""

import math
from dataclasses import dataclass
from typing import Any

from genwright.errors import UserError
from genwright.images.sampling.pipeline import DTYPES
from genwright.images.training import noise_levels as curriculum

METHODS = ("edm", "consistency", "distill", "progdist", "dmd")
SCHEDULES = ("adaptive", "ect")
OPTIMIZERS = ("adamw", "radam")
# Levels 0, 20 and 39 of 40 are sigma 80, 2.2 and 0.002: more is redrawn than from easy consistency tuning's 0.82.
TWO_STEPS: dict[str, Any] = {"sampler": "multistep", "steps": 40, "ts": (0, 20, 39)}
ONE_STEP: dict[str, Any] = {"sampler": "onestep"}


@dataclass(frozen=True)
class TrainSettings:
    """How a model is trained; checks itself. None is the method's own default."""

    method: str = "edm"
    steps: int = 10_000
    batch_size: int = 256
    accumulate: int = 1
    lr: float = 1e-4
    warmup: int = 0
    anneal: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.99
    ema: tuple[float, ...] = (0.999,)
    ema_warmup: bool = True
    dtype: str = "float32"
    schedule: str = "ect"
    first_stage: int = 0
    stages: int = 8
    start_scales: int | None = None
    end_scales: int = 150
    start_ema: float = 0.95
    pairs: int = 8192
    keep: float = 0.5
    loss_norm: str | None = None
    weighting: str | None = None
    p_mean: float | None = None
    p_std: float | None = None
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (
            ("method", METHODS),
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("dtype", tuple(DTYPES)),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"There is no {name} {getattr(self, name)!r}; choose one of {', '.join(choices)}.")
        for name in ("steps", "batch_size", "accumulate", "stages", "pairs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be 1 or more, not {getattr(self, name)}.")
        if not 0 < self.lr < math.inf or not 0 <= self.anneal <= 1 or self.warmup < 0:
            raise UserError("lr must be positive, anneal in [0, 1] and warmup 0 or more.")
        if not self.ema or not all(0 <= decay < 1 for decay in (*self.ema, self.beta1, self.beta2)):
            raise UserError("Every ema, beta1 and beta2 must be in [0, 1).")
        if len(set(self.ema)) < len(self.ema):
            raise UserError("Every ema must be another: one model is written for each.")
        if not self.keep >= 0:
            raise UserError(f"keep must be 0 or more, not {self.keep}.")
        if not 0 <= self.first_stage < self.stages:
            raise UserError(f"first_stage must be one of the stages, 0 to {self.stages - 1}, not {self.first_stage}.")
        if not 0 < self.sigma_min < self.sigma_max or not self.rho > 0:
            raise UserError("sigma_min and sigma_max must rise from above 0, and rho be positive.")
        if self.method == "progdist":
            curriculum.halving(0, self.steps, self.scales)

    @property
    def tuning(self) -> bool:
        """Whether this is easy consistency tuning."""
        return self.method == "consistency" and self.schedule == "ect"

    @property
    def taught(self) -> bool:
        """Whether there is a teacher."""
        return self.method in ("distill", "progdist", "dmd")

    @property
    def few_steps(self) -> bool:
        """Whether the model makes images in one step or a few: a consistency model, D(x, sigma_min) = x."""
        return self.method in ("consistency", "distill", "dmd")

    @property
    def scales(self) -> int:
        """The noise levels (progdist: the steps) that training begins with; the original's, where none are given."""
        return self.start_scales or {"consistency": 2, "distill": 40}.get(self.method, 64)

    @property
    def norm(self) -> str:
        return self.loss_norm or ("pseudo-huber" if self.tuning else "l2")

    @property
    def weight(self) -> str:
        return self.weighting or {"edm": "karras", "dmd": "karras", "progdist": "truncated-snr"}.get(
            self.method, "uniform"
        )

    @property
    def levels(self) -> tuple[float, float]:
        """Mean and standard deviation of ln sigma: EDM's, easy consistency tuning's, or where dmd compares."""
        mean, std = (-1.1, 2.0) if self.tuning else (0.0, 1.5) if self.method == "dmd" else (-1.2, 1.2)
        return mean if self.p_mean is None else self.p_mean, std if self.p_std is None else self.p_std

    def lr_at(self, step: int) -> float:
        """Linear up over `warmup` steps, and down to 0 over the last `anneal` of them (progdist: of every stage)."""
        length = self.steps
        if self.method == "progdist":
            length = curriculum.halving(step, self.steps, self.scales)[1]
            step %= length
        up = min(1.0, (step + 1) / (self.warmup + 1))
        down = min(1.0, (length - step) / (self.anneal * length)) if self.anneal else 1.0
        return self.lr * up * down
