"""Packed: the base class of quantized weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear


@dataclass(frozen=True)
class Packed(ABC):
    """A quantized matrix [outputs, inputs], or a stack of them; the fields of a subclass are what it stores."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def dequantize(self, dtype: torch.dtype) -> Tensor: ...

    def tensors(self) -> dict[str, Tensor]:
        """The stored tensors by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same weight with other tensors, by field name."""
        return replace(self, **tensors)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same weight with `function` applied to each of its tensors."""
        return self.with_tensors({name: function(tensor) for name, tensor in self.tensors().items()})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of several matrices of one format."""
        tensors = [part.tensors() for part in parts]
        return replace(parts[0], **{name: torch.cat([each[name] for each in tensors]) for name in tensors[0]})

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> Self:
        """As Tensor.unflatten: view a fused matrix as a stack of equal ones; `dim` must be 0."""
        return self.map(lambda tensor: tensor.unflatten(dim, sizes))

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """As Tensor.narrow: some rows (0) or columns (1) of a matrix, in multiples of what shares a scale."""

        def cut(name: str, tensor: Tensor) -> Tensor:
            unit = self.unit(name, dim)
            return tensor.narrow(dim, start // unit, -(-length // unit))

        return replace(self, **{name: cut(name, tensor) for name, tensor in self.tensors().items()})

    def unit(self, name: str, dim: int) -> int:
        """How many rows (0) or columns (1) of the matrix one entry of the stored tensor `name` covers."""
        return 1

    def __getitem__(self, index: int | Tensor) -> Self:
        """One or several matrices of a stack."""
        # 8-bit floats are indexed as bytes, because not every device can index them.
        return self.map(lambda t: t.view(torch.uint8)[index].view(t.dtype) if t.itemsize == 1 else t[index])

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [tokens, inputs] to [tokens, outputs]."""
        return linear(x, self.dequantize(x.dtype), bias)


Weight = Tensor | Packed


def tensors_of(weight: Weight) -> list[Tensor]:
    """The tensors that store a weight, packed or not."""
    return [weight] if isinstance(weight, Tensor) else list(weight.tensors().values())


def in_groups(weight: Tensor, group: int) -> Tensor:
    """[..., columns] to float32 [..., groups, group]; a shorter last group is padded with its last column."""
    group = min(group, weight.shape[-1])
    padding = weight[..., -1:].expand(*weight.shape[:-1], -weight.shape[-1] % group)
    return torch.cat((weight, padding), dim=-1).float().unflatten(-1, (-1, group))


def spread(scales: Tensor, group: int, columns: int) -> Tensor:
    """Repeat scales per group to float32 [..., columns]; a single group stays [..., 1] and broadcasts."""
    if scales.shape[-1] == 1:
        return scales.float()
    return scales.float().repeat_interleave(group, dim=-1)[..., :columns]
