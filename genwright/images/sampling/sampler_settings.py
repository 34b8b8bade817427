"""SamplerSettings: how images are sampled; imports no torch, because the command line reads its flags from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Any

from genwright.arguments import check_settings, one_of, setting, short, whole_number
from genwright.errors import UserError
from genwright.images.sampling import schedules
from genwright.images.sampling.samplers import SAMPLERS, Churn

CONSISTENCY_SAMPLERS = ("onestep", "multistep")
SCHEDULES = ("karras", "exponential", "vp")
MOST_STEPS = 100_000


@dataclass(frozen=True)
class SamplerSettings:
    """How images are sampled, with the original's names."""

    sampler: str = setting(
        "heun", "heun, euler, dpm, ancestral, dpmpp-2m, onestep, multistep or progdist.", choices=SAMPLERS
    )
    steps: int = setting(
        40, "Sampling steps; with ts, the noise levels that ts is an index of.", between=(1, MOST_STEPS)
    )
    ts: Sequence[int] | None = setting(None, "multistep: indices of noise levels, such as 0,22,39 of 40.", commas=True)
    schedule: str = setting("karras", "karras, exponential or vp.", choices=SCHEDULES)
    sigma_min: float = setting(0.002, "Lowest noise level.", between=(1e-6, 1e6))
    sigma_max: float = setting(80.0, "Highest noise level.", between=(1e-6, 1e6))
    rho: float = setting(7.0, "Exponent of the Karras schedule.", between=(0.05, 1000.0))
    s_churn: float = setting(0.0, "heun, dpm: amount of noise that is added in each step.", between=(0.0, math.inf))
    s_tmin: float = setting(0.0, "Lowest noise level at which s_churn adds noise.", between=(0.0, math.inf))
    s_tmax: float = setting(math.inf, "Highest noise level at which s_churn adds noise.", between=(0.0, math.inf))
    s_noise: float = setting(1.0, "Scale of the noise that s_churn adds.", between=(0.0, 1000.0))
    clip_denoised: bool = setting(True, "Clip every estimated image to the range of images.")
    consistency: bool | None = None  # trained with the consistency boundary condition; None: depends on the sampler

    def __post_init__(self) -> None:
        check_settings(self)
        if self.ts is not None:
            if isinstance(self.ts, str | bytes) or not isinstance(self.ts, Sequence):
                raise UserError(f"ts must be a list of whole numbers, such as (0, 22, 39), not {short(self.ts)}.")
            object.__setattr__(self, "ts", tuple(whole_number("Each of ts", t, 0, MOST_STEPS) for t in self.ts))
        if not isinstance(self.consistency, bool | None):
            raise UserError(f"consistency must be True, False or None, not {short(self.consistency)}.")
        if not self.sigma_min < self.sigma_max:
            raise UserError(f"sigma_min must be below sigma_max, but {self.sigma_min} is not below {self.sigma_max}.")
        if self.ts is not None and self.sampler != "multistep":
            raise UserError(f"ts is for the multistep sampler, not for {self.sampler}.")
        if not all(a > b for a, b in pairwise(self.sigmas)):
            raise UserError(
                f"{self.steps} steps from {self.sigma_max} to {self.sigma_min} are too small to tell apart."
            )

    @cached_property
    def sigmas(self) -> list[float]:
        """The noise levels that the sampler goes down."""
        if self.ts is not None:
            return schedules.multistep(self.ts, self.steps, self.sigma_min, self.sigma_max, self.rho)
        # The steps of multistep and of progressive distillation lead to sigma_min, the others' last from there to 0.
        to_sigma_min = self.sampler in ("multistep", "progdist")
        levels, end = (self.steps + 1, []) if to_sigma_min else (self.steps, [0.0])
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


def sampler_settings(own: dict[str, Any], **settings: Any) -> SamplerSettings:
    """The given settings; others come from the model's `own`, if those are for the same sampler, or are defaults."""
    known = [field.name for field in fields(SamplerSettings)]
    for name in settings.keys() - set(known):
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}."
        raise UserError(f"There is no sampler setting {name}; {hint}")
    given = {name: value for name, value in settings.items() if value is not None}
    if "sampler" in given and one_of("sampler", given["sampler"], SAMPLERS) != own.get("sampler"):
        own = {}
    # Without ts, `steps` is a number of steps, and not of the levels that the model's own ts are indices of.
    if "steps" in given and "ts" not in given:
        own = {name: value for name, value in own.items() if name != "ts"}
    return SamplerSettings(**own | given)
