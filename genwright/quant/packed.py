"""Packed: a weight kept in fewer bits than it is computed with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch.nn.functional import linear


class Packed(ABC):
    """A matrix [outputs, inputs], or a stack of them; each format is a subclass that knows how it is stored."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """What memory and files hold, by name."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...

    @abstractmethod
    def unflatten(self, dim: int, sizes: tuple[int, int]) -> Self:
        """As torch's: a fused matrix seen as a stack of equal ones; `dim` is 0."""

    @abstractmethod
    def __getitem__(self, index: int | torch.Tensor) -> Self:
        """One or several matrices of a stack."""

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [tokens, inputs] to [tokens, outputs]."""
        return linear(x, self.dequantize(x.dtype), bias)


Weight = torch.Tensor | Packed


def tensors_of(weight: Weight) -> list[torch.Tensor]:
    """The tensors that hold a weight, packed or not."""
    return [weight] if isinstance(weight, torch.Tensor) else list(weight.tensors().values())
