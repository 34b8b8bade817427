"""Training a UNet: one loop for EDM, consistency training, and consistency, progressive and distribution matching
distillation.

What step k draws comes from hash(seed, k, micro-batch) alone, so a resumed run goes on exactly as it would have, and
several ranks train as one that accumulates as many micro-batches.
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from genwright.errors import UserError
from genwright.images.data.dataset import Batches
from genwright.images.model.denoiser import Denoiser, loss_weight
from genwright.images.model.unet import UNet
from genwright.images.sampling.pipeline import DTYPES
from genwright.images.sampling.sampler_settings import SamplerSettings
from genwright.images.training import losses
from genwright.images.training import noise_levels as curriculum
from genwright.images.training.teacher_samples import Trajectories, trace
from genwright.images.training.trainer_settings import TWO_STEPS, TrainSettings

LOG_EVERY = 50
CRITIC_STEPS = 2  # dmd: of which the last also trains the student
SECOND_STEP = SamplerSettings(**TWO_STEPS).sigmas[1]


class Diverged(Exception):
    """The weights, or all recent losses, are not finite."""


class Trainer:
    """The weights that train, their averages (`emas`), the optimizer, and the steps they have taken."""

    def __init__(
        self,
        settings: TrainSettings,
        unet: UNet,
        batches: Batches,
        *,
        teacher: UNet | None = None,
        lpips: losses.Norm | None = None,
        rank: int = 0,
        world: int = 1,
        compiled: bool = False,
        tracing: Callable[[int, int], None] = lambda done, total: None,
    ):
        if settings.taught and teacher is None:
            raise UserError(f"The method {settings.method} needs a teacher: --teacher FILE.")
        micro, rest = divmod(settings.batch_size, settings.accumulate * world)
        if rest or not micro:
            raise UserError(
                f"A batch of {settings.batch_size} images cannot be split evenly into {settings.accumulate * world}."
            )
        self.settings, self.batches, self.rank, self.world, self.micro = settings, batches, rank, world, micro
        self.device = batches.device
        self.norm = losses.loss_norm(settings.norm, lpips)
        self.unet = _placed(unet, self.device).train().requires_grad_(True)
        self.emas = [copy.deepcopy(self.unet).eval().requires_grad_(False) for _ in settings.ema]
        # Easy consistency tuning's target is the student itself; the original's is its average by mu(k).
        self.moving_target = settings.method in ("consistency", "distill") and not settings.tuning
        self.target = copy.deepcopy(self.unet).requires_grad_(False) if self.moving_target else self.unet
        self.teacher = None if teacher is None else _placed(teacher, self.device).eval().requires_grad_(False)
        self.critic: UNet | None = None
        self.trajectories: Trajectories | None = None
        if self.teacher is not None and settings.method == "dmd":
            self.critic = copy.deepcopy(self.teacher).train().requires_grad_(True)
            self.trajectories = trace(copy.deepcopy(self.teacher), batches, settings.pairs, settings.seed, tracing)
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
        """The average that is the model: that of the last decay given."""
        return self.emas[-1]

    def run(self, until: int, callback: Callable[["Trainer"], bool | None] | None = None) -> None:
        """Train up to step `until`; the callback sees every step's end, and ends the training by returning True."""
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
        """What the step's micro-batch of this rank draws from; counted on into the next step."""
        later, i = divmod(micro_batch, self.settings.accumulate)
        return _hash(self.settings.seed, self.step + later, i * self.world + self.rank)

    def loss(self, x0: Tensor, noise: Tensor, labels: Tensor | None, seed: int) -> Tensor:
        """The method's loss of each image at noise levels of its own: [N]."""
        s = self.settings
        count = len(x0)
        student = self._denoiser(self.unet, labels, seed)
        target = self._denoiser(self.target, labels, seed)
        if s.method == "edm":
            sigma = curriculum.log_normal(count, *s.levels, self.device)
            return losses.edm(student, x0, noise, sigma, loss_weight(s.weight, sigma))
        if s.tuning:
            # Above sigma_min, so that r < t and the loss's weight 1 / (t - r) is finite.
            t = curriculum.log_normal(count, *s.levels, self.device).clamp(1.01 * s.sigma_min, s.sigma_max)
            stage = curriculum.ect_stage(self.step, s.steps, s.first_stage, s.stages)
            r = curriculum.ect_lower(t, stage, s.sigma_min)
            return losses.consistency(student, target, x0, noise, t, r, 1 / (t - r), self.norm)
        if s.method == "progdist":
            scales = curriculum.halving(self.step, s.steps, s.scales)[0]
            index = torch.randint(scales, (count,), device=self.device)
            t, m, e = (curriculum.level(index + i, scales, s.sigma_min, s.sigma_max, s.rho) for i in (0, 0.5, 1))
            assert self.teacher is not None
            teacher = self._denoiser(self.teacher, labels, seed)
            return losses.progressive(student, teacher, x0, noise, (t, m, e), loss_weight(s.weight, t), self.norm)
        if s.method == "dmd":
            return self._matching(count, seed)
        scales = self._mu_and_scales()[1]
        index = torch.randint(scales - 1, (count,), device=self.device)
        t, r = (curriculum.level(index + i, scales - 1, s.sigma_min, s.sigma_max, s.rho) for i in (0, 1))
        weight = loss_weight(s.weight, t)
        if s.method == "consistency":
            return losses.consistency(student, target, x0, noise, t, r, weight, self.norm)
        assert self.teacher is not None
        teacher = self._denoiser(self.teacher, labels, seed, consistency=False)
        return losses.distillation(student, target, teacher, x0, noise, t, r, weight, self.norm)

    def _matching(self, count: int, seed: int) -> Tensor:
        """Critic and student in turn: what the student makes is to be as likely as data, and near the teacher's own."""
        s = self.settings
        assert self.critic is not None and self.teacher is not None and self.trajectories is not None
        x, t, image, labels = self.trajectories.draw(count)
        of_student = self.step % CRITIC_STEPS == CRITIC_STEPS - 1
        sigma = curriculum.log_normal(count, *s.levels, self.device)
        keep, noise, renoise = torch.full_like(t, s.keep), torch.randn_like(x), torch.randn_like(x)
        if of_student:
            # The last quarter are second steps, from what first ones make of the first quarter's noise (and, so that
            # there is one size of batch to compile for, of all).
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
        guess = self._denoiser(self.critic, labels, seed, consistency=False)(noisy, sigma)
        loss = loss_weight(s.weight, sigma) * losses.l2(guess, sample.detach())
        if of_student:
            with torch.no_grad():
                real = self._denoiser(self.teacher, labels, seed, consistency=False)(noisy, sigma)
            loss = loss + losses.matching(sample, real, guess) + keep * losses.l2(sample, image)
        return loss

    def _denoiser(self, net: UNet, labels: Tensor | None, seed: int, consistency: bool | None = None) -> losses.Denoise:
        network = self.networks.get(id(net), net)
        if consistency is None:
            consistency = self.settings.few_steps
        denoiser = Denoiser(network, sigma_min=self.settings.sigma_min, consistency=consistency)
        half = self.settings.dtype != "float32"

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            torch.manual_seed(seed + 1)  # student and target drop the same activations
            with torch.autocast(self.device.type, DTYPES[self.settings.dtype], enabled=half):
                return denoiser(x, sigma, labels)

        return denoise

    def _mu_and_scales(self) -> tuple[float, int]:
        s = self.settings
        if s.method == "distill":
            return s.start_ema, s.scales
        return curriculum.adaptive(self.step, s.steps, s.scales, s.end_scales, s.start_ema)

    @torch.no_grad()
    def _average(self) -> None:
        # An average that begins short forgets the first weights sooner.
        longest = (1 + self.step) / (10 + self.step) if self.settings.ema_warmup else 1.0
        for decay, ema in zip(self.settings.ema, self.emas, strict=True):
            get_ema_multi_avg_fn(min(decay, longest))(list(ema.parameters()), self.parameters, self.step)
        if self.moving_target:
            get_ema_multi_avg_fn(self._mu_and_scales()[0])(list(self.target.parameters()), self.parameters, self.step)

    def _begin_stage(self) -> None:
        # Progressive distillation: the student becomes the teacher, and a new student begins as its copy.
        if self.settings.method != "progdist" or self.step == 0 or self.teacher is None:
            return
        scales = [
            curriculum.halving(k, self.settings.steps, self.settings.scales)[0] for k in (self.step - 1, self.step)
        ]
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
        from torch import distributed

        grads = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        flat = torch.cat([total.view(1), *(grad.flatten() for grad in grads)])
        distributed.all_reduce(flat)
        total.copy_(flat[0])
        for grad, part in zip(grads, flat[1:].split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def _log(self) -> None:
        """Note the mean loss since the last time, and that the run has not diverged."""
        if not self._recent:
            return
        recent = torch.stack(self._recent)
        # Half precision may overflow in a step, which the scaler then leaves out.
        finite = recent[recent.isfinite()]
        if not nn.utils.get_total_norm(self.parameters).isfinite() or (not len(finite) and len(recent) >= LOG_EVERY):
            raise Diverged
        if len(finite):
            self.history.append((self.step, finite.mean().item()))
            self._recent = []

    def state_dict(self) -> dict[str, Any]:
        """Everything that going on needs, as plain tensors and numbers."""
        self._log()
        state = {
            "step": self.step,
            "history": self.history,
            "unet": self.unet.state_dict(),
            "emas": [ema.state_dict() for ema in self.emas],
        }
        state |= {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        if self.moving_target:
            state["target"] = self.target.state_dict()
        if self.critic is not None:
            state["critic"] = self.critic.state_dict()
        if self.settings.method == "progdist" and self.teacher is not None:
            state["teacher"] = self.teacher.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.history = state["step"], [(int(step), float(loss)) for step, loss in state["history"]]
        for ema, saved in zip(self.emas, state["emas"], strict=True):
            ema.load_state_dict(saved)
        for name in state.keys() & {"unet", "optimizer", "scaler", "target", "critic", "teacher"}:
            getattr(self, name).load_state_dict(state[name])


def _placed(unet: UNet, device: torch.device) -> UNet:
    return unet.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _hash(*numbers: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7], "little")
