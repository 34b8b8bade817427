"""Mixed: a fused weight whose matrices have several formats."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.quant.packed import Packed


@dataclass(frozen=True)
class Mixed(Packed):
    """Matrices of the same width, one below the other."""

    parts: tuple[Packed, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), self.parts[0].shape[1])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([part.dequantize(dtype) for part in self.parts])

    def split(self, bias: Tensor | None) -> list[Tensor | None]:
        """The bias of each part."""
        rows = [part.shape[0] for part in self.parts]
        return [None] * len(rows) if bias is None else list(bias.split(rows))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{i}.{name}": t for i, part in enumerate(self.parts) for name, t in part.tensors().items()}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Mixed":
        return Mixed(
            tuple(
                part.with_tensors({name: tensors[f"{i}.{name}"] for name in part.tensors()})
                for i, part in enumerate(self.parts)
            )
        )

    def unit(self, name: str, dim: int) -> int:
        raise NotImplementedError("Matrices are cut before they are fused.")
