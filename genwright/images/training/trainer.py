"""The training loop: EDM, consistency training, and consistency, progressive and distribution matching distillation.

A step's random numbers are seeded with hash(seed, step, micro-batch). Therefore a resumed run gives the same weights as
an uninterrupted one, and several ranks give those of one rank that accumulates as many micro-batches.
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_reduce
from torch.optim.swa_utils import get_ema_multi_avg_fn

from genwright.errors import UserError
from genwright.images.data.dataset import Batches
from genwright.images.model.denoiser import Denoiser, loss_weight
from genwright.images.model.unet import UNet
from genwright.images.sampling.pipeline import Progress
from genwright.images.sampling.sampler_settings import SamplerSettings
from genwright.images.sampling.schedules import karras_level
from genwright.images.training import losses, noise_levels
from genwright.images.training.teacher_samples import TeacherSamples, sample_teacher
from genwright.images.training.training_settings import TWO_STEPS, TrainerSettings

LOG_EVERY = 50
CRITIC_STEPS = 2  # dmd: the student trains in every second step, the critic in all
SECOND_STEP = SamplerSettings(**TWO_STEPS).sigmas[1]


class Diverged(Exception):
    """The weights, or all recent losses, are not finite."""


class Trainer:
    """The weights in training, their averages (`emas`), the optimizer, and the number of steps taken."""

    def __init__(
        self,
        settings: TrainerSettings,
        unet: UNet,
        batches: Batches,
        *,
        teacher: UNet | None = None,
        lpips: losses.Norm | None = None,
        rank: int = 0,
        world: int = 1,
        group: ProcessGroup | None = None,  # of these ranks; None is torch's default group
        compiled: bool = False,
        teacher_progress: Progress = lambda done, total: None,
    ):
        if settings.has_teacher and teacher is None:
            raise UserError(f"The method {settings.method} needs a teacher: --teacher MODEL.")
        micro, rest = divmod(settings.batch_size, settings.accumulate * world)
        if rest or not micro:
            raise UserError(
                f"batch_size must be a multiple of {settings.accumulate * world}, accumulate times ranks, "
                f"not {settings.batch_size}."
            )
        self.settings, self.batches, self.micro = settings, batches, micro
        self.rank, self.world, self.group = rank, world, group
        self.device = batches.device
        self.norm = losses.loss_norm(settings.norm, lpips)
        self.unet = _to_device(unet, self.device).train().requires_grad_(True)
        self.emas = [copy.deepcopy(self.unet).eval().requires_grad_(False) for _ in settings.ema]
        # The target is the student itself in easy consistency tuning, and else an average of it with decay mu(k).
        self.moving_target = settings.method in ("consistency", "distill") and not settings.easy_consistency_tuning
        self.target = copy.deepcopy(self.unet).requires_grad_(False) if self.moving_target else self.unet
        self.teacher = None if teacher is None else _to_device(teacher, self.device).eval().requires_grad_(False)
        self.critic: UNet | None = None
        self.teacher_samples: TeacherSamples | None = None
        if self.teacher is not None and settings.method == "dmd":
            self.critic = copy.deepcopy(self.teacher).train().requires_grad_(True)
            self.teacher_samples = sample_teacher(
                copy.deepcopy(self.teacher), batches, settings.pairs, settings.seed, teacher_progress
            )
        nets = [net for net in (self.unet, self.target, self.teacher, self.critic) if net is not None]
        self.networks = {id(net): torch.compile(net) if compiled else net for net in nets}
        self.parameters = list(self.unet.parameters())
        self.trained = [*self.parameters, *(self.critic.parameters() if self.critic is not None else ())]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.dtype == "float16")
        self.optimizer = self._new_optimizer()
        self.step, self.history = 0, list[tuple[int, float]]()
        self._recent: list[Tensor] = []

    @property
    def ema(self) -> UNet:
        """The averaged weights that become the model: those of the last decay given."""
        return self.emas[-1]

    def run(self, until: int, callback: Callable[["Trainer"], bool | None] | None = None) -> None:
        """Train up to step `until`; `callback` is called after every step and stops the training by returning True."""
        while self.step < until:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                self._recent.append(self._step())
            self.step += 1
            if self.step % LOG_EVERY == 0 or self.step == until:
                self._log()
            if callback is not None and callback(self):
                return

    def _step(self) -> Tensor:
        settings = self.settings
        self._begin_stage()
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(self.step)
        total = torch.zeros((), device=self.device)
        for i in range(settings.accumulate):
            seed = self._seed(i)
            torch.manual_seed(seed)
            x0, labels = self.batches.draw(self.micro)
            self.batches.read_ahead(self._seed(i + 1), self.micro)
            loss = self.loss(x0, torch.randn_like(x0), labels, seed).mean() / (settings.accumulate * self.world)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        if self.world > 1:
            self._sum_over_ranks(total)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._average()
        return total

    def _seed(self, micro_batch: int) -> int:
        """The seed of a micro-batch of this rank; indices past this step's last one continue into the next step."""
        later, i = divmod(micro_batch, self.settings.accumulate)
        return _hash(self.settings.seed, self.step + later, i * self.world + self.rank)

    def loss(self, x0: Tensor, noise: Tensor, labels: Tensor | None, seed: int) -> Tensor:
        """The method's loss of each image, every image at its own noise level: [N]."""
        s = self.settings
        count = len(x0)
        student = self._denoiser(self.unet, labels, seed)
        target = self._denoiser(self.target, labels, seed)
        if s.method == "edm":
            sigma = noise_levels.log_normal(count, *s.log_sigma, self.device)
            return losses.edm(student, x0, noise, sigma, loss_weight(s.loss_weighting, sigma))
        if s.method == "progdist":
            scales = s.progressive_stage(self.step)[0]
            index = torch.randint(scales, (count,), device=self.device)
            t, m, e = (karras_level((index + i) / scales, s.sigma_min, s.sigma_max, s.rho) for i in (0, 0.5, 1))
            assert self.teacher is not None
            teacher = self._denoiser(self.teacher, labels, seed)
            weight = loss_weight(s.loss_weighting, t)
            return losses.progressive(student, teacher, x0, noise, (t, m, e), weight, self.norm)
        if s.method == "dmd":
            return self._distribution_matching(count, seed)
        t, r, weight = self._neighbouring_levels(count)
        x_t = x0 + losses.per_image(t) * noise
        if s.method == "distill":
            assert self.teacher is not None
            x_r = losses.heun_step(self._denoiser(self.teacher, labels, seed, consistency=False), x_t, t, r)
        else:
            x_r = x0 + losses.per_image(r) * noise
        return losses.consistency(student, target, x_t, x_r, t, r, weight, self.norm)

    def _neighbouring_levels(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Noise levels t and r < t of a consistency loss, and its weight: [N] each."""
        s = self.settings
        if s.easy_consistency_tuning:
            # Above sigma_min, so that r < t and the loss's weight 1 / (t - r) is finite.
            t = noise_levels.log_normal(count, *s.log_sigma, self.device).clamp(1.01 * s.sigma_min, s.sigma_max)
            stage = noise_levels.ect_stage(self.step, s.steps, s.first_stage, s.stages)
            r = noise_levels.ect_lower_level(t, stage, s.sigma_min)
            return t, r, 1 / (t - r)
        scales = self._mu_and_scales()[1]
        index = torch.randint(scales - 1, (count,), device=self.device)
        t, r = (karras_level((index + i) / (scales - 1), s.sigma_min, s.sigma_max, s.rho) for i in (0, 1))
        return t, r, loss_weight(s.loss_weighting, t)

    def _distribution_matching(self, count: int, seed: int) -> Tensor:
        """The critic's loss; in every second step also the student's, to match the data and the teacher's images.

        The critic is a copy of the teacher that learns to denoise the student's samples.
        """
        s = self.settings
        assert self.critic is not None and self.teacher is not None and self.teacher_samples is not None
        x, t, image, labels = self.teacher_samples.draw(count)
        of_student = self.step % CRITIC_STEPS == CRITIC_STEPS - 1
        sigma = noise_levels.log_normal(count, *s.log_sigma, self.device)
        keep, noise, renoise = torch.full_like(t, s.keep), torch.randn_like(x), torch.randn_like(x)
        if of_student:
            # The last quarter of the batch trains the second of two steps, from samples of the first quarter's noise.
            # The first step is computed for the whole batch, so that only one batch size is compiled.
            quarter = count // 4
            last = slice(count - quarter, count)
            with torch.no_grad():
                first = self._denoiser(self.unet, labels, seed)(x, t)
            x[last], t[last], keep[last] = (first + SECOND_STEP * renoise)[:quarter], SECOND_STEP, 0
            if labels is not None:
                labels[last] = labels[:quarter]
        with torch.set_grad_enabled(of_student):
            sample = self._denoiser(self.unet, labels, seed)(x, t)
        noisy = sample.detach() + sigma.view(-1, 1, 1, 1) * noise
        fake = self._denoiser(self.critic, labels, seed, consistency=False)(noisy, sigma)
        loss = loss_weight(s.loss_weighting, sigma) * losses.l2(fake, sample.detach())
        if of_student:
            with torch.no_grad():
                real = self._denoiser(self.teacher, labels, seed, consistency=False)(noisy, sigma)
            loss = loss + losses.distribution_matching(sample, real, fake) + keep * losses.l2(sample, image)
        return loss

    def _denoiser(self, net: UNet, labels: Tensor | None, seed: int, consistency: bool | None = None) -> losses.Denoise:
        network = self.networks.get(id(net), net)
        if consistency is None:
            consistency = self.settings.consistency_model
        denoiser = Denoiser(network, sigma_min=self.settings.sigma_min, consistency=consistency)
        half = self.settings.dtype != "float32"

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            torch.manual_seed(seed + 1)  # so that student and target have the same dropout
            with torch.autocast(self.device.type, getattr(torch, self.settings.dtype), enabled=half):
                return denoiser(x, sigma, labels)

        return denoise

    def _mu_and_scales(self) -> tuple[float, int]:
        s = self.settings
        if s.method == "distill":
            return s.start_ema, s.scales
        return noise_levels.adaptive_schedule(self.step, s.steps, s.scales, s.end_scales, s.start_ema)

    @torch.no_grad()
    def _average(self) -> None:
        # A smaller decay at the start forgets the initial weights sooner.
        longest = (1 + self.step) / (10 + self.step) if self.settings.ema_warmup else 1.0
        for decay, ema in zip(self.settings.ema, self.emas, strict=True):
            get_ema_multi_avg_fn(min(decay, longest))(list(ema.parameters()), self.parameters, self.step)
        if self.moving_target:
            get_ema_multi_avg_fn(self._mu_and_scales()[0])(list(self.target.parameters()), self.parameters, self.step)

    def _begin_stage(self) -> None:
        # Progressive distillation: at a new stage, the student becomes the teacher and the averages start from it.
        if self.settings.method != "progdist" or self.step == 0 or self.teacher is None:
            return
        scales = [self.settings.progressive_stage(step)[0] for step in (self.step - 1, self.step)]
        if scales[0] != scales[1]:
            self.teacher.load_state_dict(self.unet.state_dict())
            for ema in self.emas:
                ema.load_state_dict(self.unet.state_dict())
            self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.Optimizer:
        s = self.settings
        betas = (s.beta1, s.beta2)
        if s.optimizer == "radam":
            return torch.optim.RAdam(self.trained, s.lr, betas=betas, weight_decay=s.weight_decay)
        return torch.optim.AdamW(self.trained, s.lr, betas=betas, weight_decay=s.weight_decay, fused=True)

    def _sum_over_ranks(self, total: Tensor) -> None:
        grads = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        flat = torch.cat([total.view(1), *(grad.flatten() for grad in grads)])
        all_reduce(flat, group=self.group)
        total.copy_(flat[0])
        for grad, part in zip(grads, flat[1:].split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def _log(self) -> None:
        """Record the mean loss since the last record; raise Diverged if weights or losses are not finite."""
        if not self._recent:
            return
        recent = torch.stack(self._recent)
        # A step may overflow in half precision; the gradient scaler then skips it.
        finite = recent[recent.isfinite()]
        if not nn.utils.get_total_norm(self.parameters).isfinite() or (not len(finite) and len(recent) >= LOG_EVERY):
            raise Diverged
        if len(finite):
            self.history.append((self.step, finite.mean().item()))
            self._recent = []

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs, as plain tensors and numbers."""
        self._log()
        names = ["unet", "optimizer", "scaler"] + ["target"] * self.moving_target
        names += ["critic"] * (self.critic is not None) + ["teacher"] * (self.settings.method == "progdist")
        state = {"step": self.step, "history": self.history, "emas": [ema.state_dict() for ema in self.emas]}
        return state | {name: getattr(self, name).state_dict() for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.history = state["step"], [(int(step), float(loss)) for step, loss in state["history"]]
        for ema, saved in zip(self.emas, state["emas"], strict=True):
            ema.load_state_dict(saved)
        for name in state.keys() & {"unet", "optimizer", "scaler", "target", "critic", "teacher"}:
            getattr(self, name).load_state_dict(state[name])


def _to_device(unet: UNet, device: torch.device) -> UNet:
    return unet.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _hash(*numbers: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7], "little")
