"""The benchmark's four small experiments, on the engine's products and PyTorch's LayerNorm."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from common import new_experiment, register_experiment
from generate import get_arch_name
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from genwright.placement.rates import fastest
from genwright.quant.formats import Format
from genwright.quant.packed import Weight
from genwright.text.ops.backends import new_ops
from genwright.text.ops.torch_ops import TorchOps

SIZES = (1024, 4096, 8192, 16384)
HIDDEN, ROWS, EXPERTS, CHOSEN = 14336, 4096, 8, (3, 5)
A100_40G_BF16_TFLOPS = 312


def _row(name: str, metric: str, target: str, figures: Iterable[float], dtype: str, device: str) -> Any:
    found = list(figures)
    return new_experiment(
        name=name,
        metric=metric,
        target=target,
        actual=f"{sum(found) / len(found):.02f}",
        dtype=dtype,
        device=device,
        arch=get_arch_name(),
        is_model=False,
    )


def _microseconds(run: Callable[[], object], device: str) -> float:
    return fastest(run, torch.device(device)) * 1e6


def _weight(size: int, dtype: str, device: str) -> Weight:
    weight = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return Format("int8").quantize(weight) if dtype == "int8" else weight


def _products(ops: TorchOps, x: Tensor, weights: list[Weight]) -> Callable[[], object]:
    return lambda: [ops.linear(x, {"weight": weight}, "weight") for weight in weights]


@register_experiment(name="mlp_layer_norm_gelu")
@torch.inference_mode()
def run_mlp_layer_norm_gelu(device: str = "cuda") -> list[Any]:
    """Two linears and two norms; the figure is time x operations, as the original computes it."""
    figures = []
    for size in SIZES:
        first, second = (
            nn.Linear(*shape, dtype=torch.bfloat16).to(device) for shape in ((size, HIDDEN), (HIDDEN, size))
        )
        x = torch.randn(1, size, device=device, dtype=torch.bfloat16)

        def run(first: nn.Linear = first, second: nn.Linear = second, x: Tensor = x) -> Tensor:
            return layer_norm(second(layer_norm(first(x), (HIDDEN,))), x.shape[1:])

        figures.append(_microseconds(run, device) * 4 * size * HIDDEN / 1e9 / A100_40G_BF16_TFLOPS)
    return [_row("mlp_layer_norm_gelu", "flops_utilization", "0.8", figures, "bfloat16", device)]


@register_experiment(name="layer_norm")
@torch.inference_mode()
def run_layer_norm(device: str = "cuda") -> list[Any]:
    figures = []
    for size in SIZES:
        x = torch.randn(ROWS, size, device=device, dtype=torch.bfloat16)
        ones = torch.ones(size, device=device, dtype=torch.bfloat16)
        spent = _microseconds(lambda x=x, ones=ones: layer_norm(x, ones.shape, ones), device)  # type: ignore[misc]
        figures.append(2 * x.nbytes / spent / 1e3)
    return [_row("layer_norm", "memory_bandwidth(GB/s)", "950", figures, "bfloat16", device)]


@register_experiment(name="gather_gemv")
@torch.inference_mode()
def run_gather_gemv(device: str = "cuda") -> list[Any]:
    """The products of two out of eight matrices."""
    return [
        _gemv("gather_gemv", target, dtype, device, CHOSEN) for dtype, target in (("int8", "990"), ("bfloat16", "1060"))
    ]


@register_experiment(name="gemv")
@torch.inference_mode()
def run_gemv(device: str = "cuda") -> list[Any]:
    return [_gemv("gemv", target, dtype, device, (0,)) for dtype, target in (("int8", "870"), ("bfloat16", "990"))]


def _gemv(name: str, target: str, dtype: str, device: str, chosen: tuple[int, ...]) -> Any:
    ops, figures = new_ops("auto", torch.device(device), False), []
    for size in SIZES:
        matrices = [_weight(size, dtype, device) for _ in range(EXPERTS if len(chosen) > 1 else 1)]
        x = torch.randn(1, size, device=device, dtype=torch.bfloat16)
        spent = _microseconds(_products(ops, x, [matrices[i] for i in chosen]), device)
        figures.append(len(chosen) * size**2 * (1 if dtype == "int8" else 2) / spent / 1e3)
    return _row(name, "memory_bandwidth(GB/s)", target, figures, dtype, device)
