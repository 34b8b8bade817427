"""Pipeline: hidden states go from stage to stage, and the last one's logits to all."""

import torch
import torch.distributed as dist
from torch import Tensor

from genwright.parallel.ranks import Ranks


class Pipeline:
    """This rank's place among the stages. Gloo sends from main memory alone, so a GPU's tensors are copied there."""

    def __init__(self, ranks: Ranks):
        column, stage = ranks.layout.column(ranks.rank), ranks.layout.stage(ranks.rank)
        self.is_first, self.is_last = stage == 0, stage == len(column) - 1
        self._previous, self._next, self._last = column[stage - 1], column[(stage + 1) % len(column)], column[-1]
        self._group, self._on_device = ranks.column, ranks.on_device

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The hidden states of the stage before this one."""
        x = torch.empty(shape, dtype=dtype, device=device if self._on_device else "cpu")
        dist.recv(x, self._previous, self._group)
        return x.to(device)

    def send(self, x: Tensor) -> None:
        dist.send(x.contiguous() if self._on_device else x.cpu().contiguous(), self._next, self._group)

    def share_last(self, x: Tensor) -> Tensor:
        """The last stage's tensor on every stage."""
        x = x.contiguous()
        dist.broadcast(x, self._last, self._group)
        return x
