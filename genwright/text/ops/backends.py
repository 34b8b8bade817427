"""Selects the backend that computes a model's ops."""

from importlib.util import find_spec

import torch
from torch.distributed import ProcessGroup

from genwright.errors import UserError
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.torch_ops import TorchOps


def choose(backend: str, device: torch.device) -> str:
    """The backend that `auto` stands for: triton on an NVIDIA GPU, cpu on a CPU, and torch elsewhere."""
    if backend != "auto":
        return backend
    on_gpu = device.type == "cuda" and find_spec("triton") is not None
    return "triton" if on_gpu else "cpu" if device.type == "cpu" else "torch"


def new_ops(
    backend: str,
    device: torch.device,
    deterministic: bool,
    group: ProcessGroup | None = None,
    exact_inputs: bool = False,
    fp8_inputs: bool = False,
) -> TorchOps:
    """The ops of EngineConfig.backend."""
    backend = choose(backend, device)
    if backend == "torch":
        return TorchOps(deterministic, group)
    if backend == "cpu":
        if device.type != "cpu":
            raise UserError(f"The backend cpu needs the device cpu, not {device.type}.")
        return CpuOps(deterministic, group, exact_inputs)
    if device.type != "cuda" or find_spec("triton") is None:
        raise UserError(f"The backend {backend} needs an NVIDIA GPU and the package triton, not device {device.type}.")
    if backend == "inductor":
        from genwright.text.ops.inductor_ops import InductorOps

        return InductorOps(device, group=group)
    from genwright.text.ops.triton_ops import TritonOps

    return TritonOps(device, deterministic, group, fp8_inputs)
