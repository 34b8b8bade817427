"""TrainLoop: trains a diffusion model, and writes model*.pt, ema_*.pt and opt*.pt as the original does."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import RAdam

from cm import dist_util, logger
from cm.fp16_util import MixedPrecisionTrainer
from cm.nn import update_ema
from cm.resample import LossAwareSampler, UniformSampler
from genwright.errors import UserError
from genwright.images.sampling.output import write_whole


class TrainLoop:
    """Steps of RAdam over the data, up to `lr_anneal_steps`, over which the learning rate falls to 0; 0: endlessly.

    A `resume_checkpoint` modelNNNNNN.pt brings the averages and the optimizer's state beside it.
    """

    def __init__(
        self,
        *,
        model: Any,
        diffusion: Any,
        data: Iterator[tuple[Tensor, dict[str, Tensor]]],
        batch_size: int,
        microbatch: int,
        lr: float,
        ema_rate: str | float,
        log_interval: int,
        save_interval: int,
        resume_checkpoint: str,
        use_fp16: bool = False,
        fp16_scale_growth: float = 1e-3,
        schedule_sampler: Any = None,
        weight_decay: float = 0.0,
        lr_anneal_steps: int = 0,
    ):
        self.model, self.diffusion, self.data = model, diffusion, data
        self.batch_size, self.microbatch = batch_size, microbatch if microbatch > 0 else batch_size
        self.lr, self.weight_decay, self.lr_anneal_steps = lr, weight_decay, lr_anneal_steps
        self.ema_rate = [float(rate) for rate in str(ema_rate).split(",")]
        self.log_interval, self.save_interval = log_interval, save_interval
        self.resume_checkpoint = resume_checkpoint
        self.schedule_sampler = schedule_sampler or UniformSampler(diffusion)
        self.global_batch = batch_size * dist.get_world_size()

        self.resume_step = parse_resume_step_from_filename(resume_checkpoint)
        load_and_sync(model, resume_checkpoint)
        self.mp_trainer = MixedPrecisionTrainer(model=model, use_fp16=use_fp16, fp16_scale_growth=fp16_scale_growth)
        self.opt = self._new_optimizer()
        self.ema_params = [self._load_ema_parameters(rate) for rate in self.ema_rate]
        state = Path(resume_checkpoint).parent / f"opt{self.resume_step:06d}.pt"
        if self.resume_step and state.is_file():
            logger.log(f"loading optimizer state from checkpoint: {state}")
            self.opt.load_state_dict(dist_util.load_state_dict(str(state)))
        self.step = self.global_step = self.resume_step  # progressive distillation starts `step` anew in each stage

    def _new_optimizer(self) -> RAdam:
        return RAdam(self.mp_trainer.master_params, lr=self.lr, weight_decay=self.weight_decay)

    def _load_ema_parameters(self, rate: float) -> list[Tensor]:
        params = [tensor.clone() for tensor in self.mp_trainer.float_params()]
        path = find_ema_checkpoint(self.resume_checkpoint, self.resume_step, rate) if self.resume_step else None
        if path is not None:
            logger.log(f"loading EMA from checkpoint: {path}...")
            state = dist_util.load_state_dict(path)
            for (name, _), tensor in zip(self.model.named_parameters(), params, strict=True):
                tensor.copy_(state[name])
        return params

    def run_loop(self) -> None:
        """Train to the end, and save the last step."""
        saved = False
        while self._unfinished():
            batch, cond = next(self.data)
            self.run_step(batch, cond)
            saved = False
            if self.global_step % self.log_interval == 0:
                logger.dumpkvs()
            if self.global_step and self.save_interval > 0 and self.global_step % self.save_interval == 0:
                self.save()
                saved = True
                if os.environ.get("DIFFUSION_TRAINING_TEST"):
                    return
        if not saved:
            self.save()

    def _unfinished(self) -> bool:
        return not self.lr_anneal_steps or self.step < self.lr_anneal_steps

    def run_step(self, batch: Tensor, cond: dict[str, Tensor]) -> None:
        self.forward_backward(batch, cond)
        if self.mp_trainer.optimize(self.opt):
            for rate, params in zip(self.ema_rate, self.ema_params, strict=True):
                update_ema(params, self.mp_trainer.float_params(), rate)
            self._after_step()
            self.step += 1
            self.global_step += 1
        self._anneal_lr()
        self.log_step()

    def _after_step(self) -> None:
        """What follows a step, before it is counted."""

    def forward_backward(self, batch: Tensor, cond: dict[str, Tensor]) -> None:
        """Add up the gradients of the micro-batches."""
        self.mp_trainer.zero_grad()
        device = dist_util.dev()
        for i in range(0, len(batch), self.microbatch):
            part = slice(i, i + self.microbatch)
            micro = batch[part].to(device)
            t, weights = self.schedule_sampler.sample(len(micro), device)
            losses = self.compute_losses(micro, t, {key: value[part].to(device) for key, value in cond.items()})
            if isinstance(self.schedule_sampler, LossAwareSampler):
                self.schedule_sampler.update_with_local_losses(t, losses["loss"].detach())
            log_loss_dict(self.diffusion, t, {key: value * weights for key, value in losses.items()})
            self.mp_trainer.backward((losses["loss"] * weights).mean())

    def compute_losses(self, micro: Tensor, t: Tensor, cond: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.diffusion.training_losses(self.model, micro, t, model_kwargs=cond)

    def _anneal_lr(self) -> None:
        if self.lr_anneal_steps:
            for group in self.opt.param_groups:
                group["lr"] = self.lr * (1 - self.step / self.lr_anneal_steps)

    def log_step(self) -> None:
        logger.logkv("step", self.global_step)
        logger.logkv("samples", (self.global_step + 1) * self.global_batch)

    def save(self) -> None:
        """Write this step's files; the model's weights come last, so that a model*.pt never lacks the others."""
        for rate, params in zip(self.ema_rate, self.ema_params, strict=True):
            logger.log(f"saving model {rate}...")
            self._write(f"ema_{rate}_", self.mp_trainer.state_dict_of(params))
        self._write("opt", self.opt.state_dict())
        self._save_others()
        logger.log("saving model 0...")
        self._write("model", self.mp_trainer.state_dict_of(self.mp_trainer.float_params()))
        dist.barrier()

    def _save_others(self) -> None:
        """Write what other networks a step has."""

    def _write(self, name: str, state: dict[str, Any]) -> None:
        if dist.get_rank() == 0:
            path = Path(get_blob_logdir()) / f"{name}{self.global_step:06d}.pt"
            write_whole(path, lambda part: torch.save(state, part))


def load_and_sync(model: Any, path: str) -> None:
    """Load a checkpoint into a model, if one is given, and give all ranks the weights of rank 0."""
    if path and dist.get_rank() == 0:
        logger.log(f"loading model from checkpoint: {path}...")
        model.load_state_dict(dist_util.load_state_dict(path))
    dist_util.sync_params(model.parameters())
    dist_util.sync_params(model.buffers())


def parse_resume_step_from_filename(filename: str) -> int:
    """N of path/to/modelN.pt; 0 of any other name."""
    number = filename.rpartition("model")[2].split(".")[0]
    return int(number) if "model" in filename and number.isdecimal() else 0


def get_blob_logdir() -> str:
    """The folder that checkpoints are written to."""
    folder = logger.get_dir()
    if not folder:
        raise UserError("logger.configure must be called before training, because checkpoints go to its folder.")
    return folder


def find_ema_checkpoint(main_checkpoint: str, step: int, rate: float) -> str | None:
    """The averaged weights beside a checkpoint, if they are there."""
    path = Path(main_checkpoint).parent / f"ema_{rate}_{step:06d}.pt"
    return str(path) if path.is_file() else None


def log_loss_dict(diffusion: Any, ts: Tensor, losses: dict[str, Tensor]) -> None:
    """Log the mean of each loss, and its means over the quarters of the time steps."""
    quarters: Sequence[int] = [int(4 * t / diffusion.num_timesteps) for t in ts.tolist()]
    for key, values in losses.items():
        logger.logkv_mean(key, values.mean().item())
        for quarter, value in zip(quarters, values.tolist(), strict=True):
            logger.logkv_mean(f"{key}_q{quarter}", value)
