"""MixedPrecisionTrainer: float32 copies of half-precision weights, and a loss scale that grows until it overflows."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cm import dist_util, logger

INITIAL_LOG_LOSS_SCALE = 20.0


class MixedPrecisionTrainer:
    """The weights that an optimizer updates: the model's own, or with `use_fp16` two flat float32 copies of them.

    One copy is of the weights of one dimension, the other, [1, N], of the others: so opt*.pt files are the original's.
    Gradients are averaged over the ranks.
    """

    def __init__(
        self,
        *,
        model: Any,
        use_fp16: bool = False,
        fp16_scale_growth: float = 1e-3,
        initial_lg_loss_scale: float = INITIAL_LOG_LOSS_SCALE,
    ):
        self.model, self.use_fp16, self.fp16_scale_growth = model, use_fp16, fp16_scale_growth
        self.lg_loss_scale = initial_lg_loss_scale
        self.model_params: list[nn.Parameter] = list(model.parameters())
        self.master_params: list[nn.Parameter] = self.model_params
        self._groups: list[list[int]] = []  # the parameters in each flat copy
        if use_fp16:
            flat = [parameter.ndim <= 1 for parameter in self.model_params]
            self._groups = [[i for i, is_flat in enumerate(flat) if is_flat is wanted] for wanted in (True, False)]
            copies = [self._flatten(group, [p.detach() for p in self.model_params]) for group in self._groups]
            self.master_params = [nn.Parameter(copy) for copy in copies]
            model.convert_to_fp16()

    def _flatten(self, group: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
        flat = _flatten_dense_tensors([tensors[i].float().contiguous() for i in group])
        return flat if tensors[group[0]].ndim <= 1 else flat.view(1, -1)

    def float_params(self) -> list[Tensor]:
        """The float32 weights, in the order and the shapes of the model's."""
        if not self.use_fp16:
            return [parameter.detach() for parameter in self.model_params]
        found: dict[int, Tensor] = {}
        for group, master in zip(self._groups, self.master_params, strict=True):
            like = [self.model_params[i] for i in group]
            found |= zip(group, _unflatten_dense_tensors(master.detach().view(-1), like), strict=True)
        return [found[i] for i in range(len(self.model_params))]

    def zero_grad(self) -> None:
        for parameter in self.model_params:
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        (loss * self._scale if self.use_fp16 else loss).backward()

    @property
    def _scale(self) -> float:
        return float(2**self.lg_loss_scale)

    @torch.no_grad()
    def optimize(self, opt: torch.optim.Optimizer) -> bool:
        """Take a step, unless half-precision gradients overflowed."""
        scale = 1.0
        if self.use_fp16:
            scale = self._scale
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model_params]
            logger.logkv_mean("lg_loss_scale", self.lg_loss_scale)
            for group, master in zip(self._groups, self.master_params, strict=True):
                master.grad = self._flatten(group, grads)
        dist_util.average(parameter.grad for parameter in self.master_params if parameter.grad is not None)
        grad_norm = _norm([p.grad for p in self.master_params if p.grad is not None]) / scale
        if self.use_fp16 and not math.isfinite(grad_norm):
            self.lg_loss_scale -= 1
            logger.log(f"Found NaN, decreased lg_loss_scale to {self.lg_loss_scale}")
            return False
        logger.logkv_mean("grad_norm", grad_norm)
        logger.logkv_mean("param_norm", _norm(self.master_params))
        if self.use_fp16:
            for master in self.master_params:
                assert master.grad is not None
                master.grad.mul_(1 / scale)
        opt.step()
        if self.use_fp16:
            for parameter, master_part in zip(self.model_params, self.float_params(), strict=True):
                parameter.copy_(master_part)
            self.lg_loss_scale += self.fp16_scale_growth
        return True

    def state_dict_of(self, params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The model's state with these weights."""
        names = [name for name, _ in self.model.named_parameters()]
        return self.model.state_dict() | {name: t.detach() for name, t in zip(names, params, strict=True)}


def _norm(tensors: Sequence[Tensor]) -> float:
    return nn.utils.get_total_norm([tensor.detach() for tensor in tensors]).item()
