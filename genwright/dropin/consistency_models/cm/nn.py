"""Small functions on tensors that scripts import from the original's `nn`."""

from collections.abc import Iterable

import torch
from torch import Tensor

from genwright.errors import UserError


def update_ema(target_params: Iterable[Tensor], source_params: Iterable[Tensor], rate: float = 0.99) -> None:
    """target = rate * target + (1 - rate) * source."""
    pairs = list(zip(target_params, source_params, strict=True))
    targets, sources = [target.detach() for target, _ in pairs], [source.detach() for _, source in pairs]
    torch._foreach_mul_(targets, rate)
    torch._foreach_add_(targets, sources, alpha=1 - rate)


def mean_flat(tensor: Tensor) -> Tensor:
    """The mean of each row."""
    return tensor.flatten(1).mean(dim=1)


def append_dims(x: Tensor, target_dims: int) -> Tensor:
    """Append dimensions of size 1."""
    if target_dims < x.ndim:
        raise UserError(f"A tensor of {x.ndim} dimensions cannot be given {target_dims}.")
    return x[(...,) + (None,) * (target_dims - x.ndim)]


def append_zero(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros([1])])
