"""CMTrainLoop: consistency distillation, consistency training and progressive distillation."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cm.nn import update_ema
from cm.train_loop import TrainLoop, load_and_sync
from genwright.arguments import one_of
from genwright.errors import UserError

MODES = ("consistency_distillation", "consistency_training", "progdist")


class CMTrainLoop(TrainLoop):
    """Trains up to `total_training_steps`, and to the end of the learning rate's fall."""

    def __init__(
        self,
        *,
        target_model: Any,
        teacher_model: Any,
        teacher_diffusion: Any,
        training_mode: str,
        ema_scale_fn: Callable[[int], tuple[float, int]],
        total_training_steps: int,
        **kwargs: Any,
    ):
        self.training_mode = one_of("training_mode", training_mode, MODES)
        if training_mode != "consistency_training" and teacher_model is None:
            raise UserError(f"The training mode {training_mode} needs a teacher: --teacher_model_path FILE.")
        super().__init__(**kwargs)
        self.ema_scale_fn, self.total_training_steps = ema_scale_fn, total_training_steps
        self.target_model, self.teacher_model, self.teacher_diffusion = target_model, teacher_model, teacher_diffusion
        self.target_params: list[Tensor] = []  # in float32
        if target_model is not None:
            self._load_and_sync(target_model, "target_model", start=self.mp_trainer.model)
            target_model.requires_grad_(False).train()
            self.target_params = [parameter.detach().float().clone() for parameter in target_model.parameters()]
        if teacher_model is not None:
            self._load_and_sync(teacher_model, "teacher_model")
            teacher_model.requires_grad_(False).eval()
        if training_mode == "progdist":
            self._resume_stage()

    def _load_and_sync(self, model: Any, name: str, start: Any = None) -> None:
        """Load a resumed run's network from its file beside model*.pt; else a resumed one begins as `start`."""
        resumed = Path(self.resume_checkpoint)
        path = resumed.with_name(resumed.name.replace("model", name)) if self.resume_step else None
        if path is None or not path.is_file():
            path = None
            if self.resume_checkpoint and start is not None:
                model.load_state_dict(start.state_dict())
        load_and_sync(model, str(path or ""))

    def _resume_stage(self) -> None:
        """Continue progressive distillation within its stage; those of two steps and of one are twice as long."""
        if not self.lr_anneal_steps:
            return
        if self.ema_scale_fn(self.global_step)[1] > 2:
            self.step = self.global_step % self.lr_anneal_steps
            return
        start_scales = self.ema_scale_fn(0)[1]
        step = self.global_step - int(math.log2(max(1, start_scales // 2))) * self.lr_anneal_steps
        if step:
            self.lr_anneal_steps *= 2
        self.step = step % self.lr_anneal_steps

    def _unfinished(self) -> bool:
        return self.global_step < self.total_training_steps or self.step < self.lr_anneal_steps

    def compute_losses(self, micro: Tensor, t: Tensor, cond: dict[str, Tensor]) -> dict[str, Tensor]:
        scales = self.ema_scale_fn(self.global_step)[1]
        teacher = {"teacher_model": self.teacher_model, "teacher_diffusion": self.teacher_diffusion}
        if self.training_mode == "progdist":
            return self.diffusion.progdist_losses(self.model, micro, scales, model_kwargs=cond, **teacher)
        if self.training_mode == "consistency_training":
            teacher = {}
        return self.diffusion.consistency_losses(
            self.model, micro, scales, model_kwargs=cond, target_model=self.target_model, **teacher
        )

    @torch.no_grad()
    def _after_step(self) -> None:
        if self.target_model is not None:
            update_ema(self.target_params, self.mp_trainer.float_params(), self.ema_scale_fn(self.global_step)[0])
            for parameter, average in zip(self.target_model.parameters(), self.target_params, strict=True):
                parameter.copy_(average)
        if self.training_mode == "progdist" and self.global_step:
            before, now = (self.ema_scale_fn(step)[1] for step in (self.global_step - 1, self.global_step))
            if before != now:
                self._begin_stage(now)

    def _begin_stage(self, scales: int) -> None:
        """The student becomes the teacher of the next stage, and optimizer and averages start anew."""
        for parameter, learned in zip(self.teacher_model.parameters(), self.model.parameters(), strict=True):
            parameter.copy_(learned)
        self.opt = self._new_optimizer()
        self.ema_params = [[tensor.clone() for tensor in self.mp_trainer.float_params()] for _ in self.ema_rate]
        if scales == 2:
            self.lr_anneal_steps *= 2
        self.step = 0

    def _save_others(self) -> None:
        if self.target_model is not None:
            self._write("target_model", self.target_model.state_dict())
        if self.training_mode == "progdist":
            self._write("teacher_model", self.teacher_model.state_dict())
