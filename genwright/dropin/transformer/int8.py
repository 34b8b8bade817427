"""gpt-fast's int8 weights: one scale for each row, as modules and as a checkpoint's tensors."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from genwright.dropin.transformer.modules import ConditionalFeedForward


def dynamically_quantize_per_channel(
    x: Tensor, quant_min: int, quant_max: int, target_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, scales and zero points (which are 0) of x [rows, columns]."""
    smallest = torch.finfo(torch.float32).eps
    scales = (x.abs().amax(dim=1) / ((quant_max - quant_min) / 2)).clamp(min=smallest).to(x.dtype)
    values = (x / scales[:, None]).round().clamp(quant_min, quant_max).to(target_dtype)
    return values, scales, torch.zeros(len(x), dtype=torch.int64, device=x.device)


def quantize_experts(experts: Tensor) -> tuple[Tensor, Tensor]:
    """Integers and scales [experts, rows] of [experts, rows, columns]."""
    values, scales, _ = dynamically_quantize_per_channel(experts.flatten(0, 1).float(), -128, 127, torch.int8)
    return values.view(experts.shape), scales.view(experts.shape[:2])


class WeightOnlyInt8Linear(nn.Module):
    weight: Tensor
    scales: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        target_dtype: torch.dtype = torch.int8,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", torch.empty((out_features, in_features), dtype=target_dtype))
        self.register_buffer("scales", torch.ones(out_features, dtype=torch.bfloat16))

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight.to(input.dtype)) * self.scales


class ConditionalFeedForwardInt8(ConditionalFeedForward):
    def __init__(self, num_experts: int, intermediate_size: int, dim: int, target_dtype: torch.dtype = torch.int8):
        nn.Module.__init__(self)
        self.target_dtype = target_dtype
        first = num_experts, intermediate_size, dim
        for name, shape in (("1", first), ("2", (num_experts, dim, intermediate_size)), ("3", first)):
            self.register_buffer(f"w{name}", torch.empty(shape, dtype=target_dtype))
            self.register_buffer(f"scales{name}", torch.empty(shape[:2], dtype=torch.bfloat16))

    def product(self, name: str, x: Tensor, index: Any, equation: str) -> Tensor:
        weight, scales = getattr(self, name)[index], getattr(self, f"scales{name[1:]}")[index]
        return torch.einsum(equation, x, weight.to(x.dtype)) * scales.to(x.dtype)


class WeightOnlyInt8QuantHandler:
    """Quantizes a model's matrices, those of experts too, and replaces its modules by int8 ones; not the routers."""

    def __init__(self, mod: Any, target_dtype: torch.dtype = torch.int8):
        self.mod, self.target_dtype = mod, target_dtype

    @torch.no_grad()
    def create_quantized_state_dict(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.mod.state_dict()
        for name, module in self.mod.named_modules():
            if isinstance(module, nn.Linear) and not name.endswith(".gate"):
                values, scales, _ = dynamically_quantize_per_channel(module.weight.float(), -128, 127, torch.int8)
                state |= {f"{name}.weight": values, f"{name}.scales": scales.to(module.weight.dtype)}
            elif isinstance(module, ConditionalFeedForward):
                for part in "123":
                    weight = getattr(module, f"w{part}")
                    values, scales = quantize_experts(weight)
                    state |= {f"{name}.w{part}": values, f"{name}.scales{part}": scales.to(weight.dtype)}
        return state

    def convert_for_runtime(self) -> Any:
        self._replace(self.mod)
        return self.mod

    def _replace(self, module: nn.Module) -> None:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and name != "gate":
                new: nn.Module = WeightOnlyInt8Linear(
                    child.in_features, child.out_features, target_dtype=self.target_dtype
                )
            elif isinstance(child, ConditionalFeedForward):
                experts, size, dim = child.w1.shape
                new = ConditionalFeedForwardInt8(experts, size, dim, self.target_dtype)
            else:
                self._replace(child)
                continue
            setattr(module, name, new)
