"""KarrasDenoiser and karras_sample: preconditioning, training losses and sampling, over Genwright's own."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cm import dist_util
from cm.editing import iterative_colorization, iterative_inpainting, iterative_superres
from cm.random_util import DummyGenerator, Generator
from cm.samplers import (
    get_ancestral_step,
    get_sigmas_karras,
    sample_dpm,
    sample_euler,
    sample_euler_ancestral,
    sample_heun,
    sample_midpoint_ancestral,
    sample_onestep,
    sample_progdist,
    stochastic_iterative_sampler,
    to_d,
)
from genwright.arguments import one_of
from genwright.errors import UserError
from genwright.images.metrics.lpips import Lpips
from genwright.images.model import denoiser
from genwright.images.model.denoiser import WEIGHTINGS, loss_weight
from genwright.images.sampling.schedules import karras_level
from genwright.images.training import losses
from genwright.images.training.losses import per_image

__all__ = [
    "KarrasDenoiser", "get_ancestral_step", "get_sigmas_karras", "get_weightings", "iterative_colorization",
    "iterative_inpainting", "iterative_superres", "karras_sample", "sample_dpm", "sample_euler",
    "sample_euler_ancestral", "sample_heun", "sample_midpoint_ancestral", "sample_onestep", "sample_progdist",
    "stochastic_iterative_sampler", "to_d",
]  # fmt: skip

_LPIPS = ("vgg16-397923af.pth", "lpips_weights.pt")  # as torchvision and piq keep them
_SAMPLERS: dict[str, Callable[..., Tensor]] = {
    "heun": sample_heun,
    "dpm": sample_dpm,
    "ancestral": sample_euler_ancestral,
    "onestep": sample_onestep,
    "progdist": sample_progdist,
    "euler": sample_euler,
    "multistep": stochastic_iterative_sampler,
}


def get_weightings(weight_schedule: str, snrs: Tensor, sigma_data: float) -> Tensor:
    """The weights of a loss at signal-to-noise ratios."""
    return WEIGHTINGS[one_of("weight_schedule", weight_schedule, WEIGHTINGS)](snrs, sigma_data)


class KarrasDenoiser:
    """EDM's preconditioning of a network, or with `distillation` a consistency model's; and the training losses."""

    def __init__(
        self,
        sigma_data: float = 0.5,
        sigma_max: float = 80.0,
        sigma_min: float = 0.002,
        rho: float = 7.0,
        weight_schedule: str = "karras",
        distillation: bool = False,
        loss_norm: str = "lpips",
    ):
        self.sigma_data, self.sigma_max, self.sigma_min, self.rho = sigma_data, sigma_max, sigma_min, rho
        self.weight_schedule = one_of("weight_schedule", weight_schedule, WEIGHTINGS)
        self.distillation = distillation
        self.loss_norm = one_of("loss_norm", loss_norm, [*losses.NORMS, "lpips"])
        self.num_timesteps = 40

    @cached_property
    def lpips_loss(self) -> Lpips:
        """LPIPS with the weights that torchvision and piq keep; read when a loss needs them."""
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        paths = [folder / name for name in _LPIPS]
        if not all(path.is_file() for path in paths):
            raise UserError(
                f"The loss norm lpips needs {' and '.join(_LPIPS)} in {folder}, where torchvision and piq keep them; "
                "put them there or choose another --loss_norm."
            )
        return Lpips.load(paths, dist_util.dev())

    def get_snr(self, sigmas: Tensor) -> Tensor:
        return sigmas**-2

    def get_sigmas(self, sigmas: Tensor) -> Tensor:
        return sigmas

    def get_scalings(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """EDM's c_skip, c_out and c_in."""
        return self._scalings(sigma, False)

    def get_scalings_for_boundary_condition(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A consistency model's c_skip, c_out and c_in."""
        return self._scalings(sigma, True)

    def _scalings(self, sigma: Tensor, consistency: bool) -> tuple[Tensor, Tensor, Tensor]:
        return denoiser.Denoiser(_no_network, self.sigma_data, self.sigma_min, consistency).scalings(sigma)

    def denoise(self, model: Any, x_t: Tensor, sigmas: Tensor, **model_kwargs: Any) -> tuple[Tensor, Tensor]:
        """The network's output, and the estimated images."""
        outputs: list[Tensor] = []

        def network(x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
            outputs.append(model(x, t, **model_kwargs))
            return outputs[0]

        precondition = denoiser.Denoiser(network, self.sigma_data, self.sigma_min, self.distillation)
        denoised = precondition(x_t, sigmas)
        return outputs[0], denoised

    def _denoise(self, model: Any, model_kwargs: dict[str, Any] | None) -> losses.Denoise:
        return lambda x, sigma: self.denoise(model, x, sigma, **(model_kwargs or {}))[1]

    def _norm(self) -> losses.Norm:
        return losses.loss_norm(self.loss_norm, self.lpips_loss if self.loss_norm == "lpips" else None)

    def _levels(self, indices: Tensor, scales: int, steps: tuple[float, ...]) -> tuple[Tensor, ...]:
        at = partial(karras_level, sigma_min=self.sigma_min, sigma_max=self.sigma_max, rho=self.rho)
        return tuple(at((indices + step) / scales) for step in steps)

    def training_losses(
        self,
        model: Any,
        x_start: Tensor,
        sigmas: Tensor,
        model_kwargs: dict[str, Any] | None = None,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """EDM's loss of each image, also without its weight: xs_mse."""
        if not sigmas.is_floating_point():
            raise UserError(
                "A diffusion model trains on noise levels, and not on indices of time steps, which the schedule "
                "sampler draws; choose --schedule_sampler lognormal."
            )
        noise = torch.randn_like(x_start) if noise is None else noise
        denoised = self._denoise(model, model_kwargs)(x_start + per_image(sigmas) * noise, sigmas)
        error = losses.l2(denoised, x_start)
        weighted = loss_weight(self.weight_schedule, sigmas, self.sigma_data) * error
        return {"xs_mse": error, "mse": weighted, "loss": weighted}

    def consistency_losses(
        self,
        model: Any,
        x_start: Tensor,
        num_scales: int,
        model_kwargs: dict[str, Any] | None = None,
        target_model: Any = None,
        teacher_model: Any = None,
        teacher_diffusion: "KarrasDenoiser | None" = None,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The consistency loss of each image: distillation with a teacher, else consistency training."""
        if target_model is None:
            raise UserError("A consistency loss needs a target_model.")
        noise = torch.randn_like(x_start) if noise is None else noise
        indices = torch.randint(0, num_scales - 1, (len(x_start),), device=x_start.device)
        t, r = self._levels(indices, num_scales - 1, (0, 1))
        x_t = x_start + per_image(t) * noise
        same_dropout = _rewind(x_start.device)
        x_r = x_start + per_image(r) * noise
        if teacher_model is not None:
            teacher = (teacher_diffusion or self)._denoise(teacher_model, model_kwargs)
            with torch.no_grad():
                x_r = losses.heun_step(teacher, x_t, t, r)

        def student(x: Tensor, sigma: Tensor) -> Tensor:
            same_dropout()
            return self._denoise(model, model_kwargs)(x, sigma)

        @torch.no_grad()
        def target(x: Tensor, sigma: Tensor) -> Tensor:
            same_dropout()
            return self._denoise(target_model, model_kwargs)(x, sigma)

        weight = loss_weight(self.weight_schedule, t, self.sigma_data)
        return {"loss": losses.consistency(student, target, x_t, x_r, t, r, weight, self._norm())}

    def progdist_losses(
        self,
        model: Any,
        x_start: Tensor,
        num_scales: int,
        model_kwargs: dict[str, Any] | None = None,
        teacher_model: Any = None,
        teacher_diffusion: "KarrasDenoiser | None" = None,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The loss of progressive distillation of each image."""
        if teacher_model is None:
            raise UserError("Progressive distillation needs a teacher: --teacher_model_path.")
        noise = torch.randn_like(x_start) if noise is None else noise
        indices = torch.randint(0, num_scales, (len(x_start),), device=x_start.device)
        t, m, s = self._levels(indices, num_scales, (0, 0.5, 1))
        student = self._denoise(model, model_kwargs)
        teacher = torch.no_grad()((teacher_diffusion or self)._denoise(teacher_model, model_kwargs))
        weight = loss_weight(self.weight_schedule, t, self.sigma_data)
        return {"loss": losses.progressive(student, teacher, x_start, noise, (t, m, s), weight, self._norm())}


def _no_network(x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
    raise NotImplementedError("The scalings do not depend on the network.")


def _rewind(device: torch.device) -> Callable[[], None]:
    """A function that sets torch's generators to their present state, so that two networks draw the same dropout."""
    state = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(state)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    return rewind


def karras_sample(
    diffusion: KarrasDenoiser,
    model: Any,
    shape: tuple[int, ...],
    steps: int,
    clip_denoised: bool = True,
    progress: bool = False,
    callback: Callable[[dict[str, Any]], object] | None = None,
    model_kwargs: dict[str, Any] | None = None,
    device: Any = None,
    sigma_min: float = 0.002,
    sigma_max: float = 80.0,
    rho: float = 7.0,
    sampler: str = "heun",
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
    generator: Generator | None = None,
    ts: tuple[int, ...] | None = None,
) -> Tensor:
    """Images of a shape [N, 3, H, W] in [-1, 1]."""
    one_of("sampler", sampler, _SAMPLERS)
    draws = generator or DummyGenerator()
    sigmas = get_sigmas_karras(steps + (sampler == "progdist"), sigma_min, sigma_max, rho)
    x_T = draws.randn(*shape, device=device) * sigma_max
    options: dict[str, Any] = {}
    if sampler in ("heun", "dpm"):
        options = {"s_churn": s_churn, "s_tmin": s_tmin, "s_tmax": s_tmax, "s_noise": s_noise}
    elif sampler == "multistep":
        if not ts:
            raise UserError("The multistep sampler needs ts, indices of noise levels, such as --ts 0,22,39.")
        options = {"ts": ts, "t_min": sigma_min, "t_max": sigma_max, "rho": diffusion.rho, "steps": steps}

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        denoised = diffusion.denoise(model, x, sigma, **(model_kwargs or {}))[1]
        return denoised.clamp(-1, 1) if clip_denoised else denoised

    return _SAMPLERS[sampler](denoise, x_T, sigmas, draws, progress=progress, callback=callback, **options).clamp(-1, 1)
