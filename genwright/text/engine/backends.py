"""Which backend computes a model, and the runner and decode loop that it allows."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from genwright.errors import UserError
from genwright.text.engine.executor import ResidentRunner
from genwright.text.model import Model
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.torch_ops import TorchOps

if TYPE_CHECKING:
    from genwright.text.engine.ahead import DecodeLoop

BACKENDS = ("auto", "torch", "cpu", "triton", "inductor")


def pick_backend(name: str, device: torch.device, deterministic: bool) -> TorchOps:
    """`auto` is triton on an NVIDIA GPU, cpu on a CPU, and torch elsewhere."""
    if name not in BACKENDS:
        raise UserError(f"The backend must be one of {', '.join(BACKENDS)}, not {name!r:.60}.")
    on_gpu = device.type == "cuda" and find_spec("triton") is not None
    if name == "auto":
        name = "triton" if on_gpu else "cpu" if device.type == "cpu" else "torch"
    if name in ("triton", "inductor") and not on_gpu:
        raise UserError(f"The backend {name} needs an NVIDIA GPU and the package triton; the device is {device.type}.")
    if name == "cpu" and device.type != "cpu":
        raise UserError(f"The backend cpu computes on a CPU; the device is {device.type}.")
    if name == "inductor" and deterministic:
        raise UserError("The backend inductor has no deterministic mode; choose triton or torch.")
    if name == "torch":
        return TorchOps(deterministic)
    if name == "cpu":
        return CpuOps(deterministic)
    if name == "inductor":
        from genwright.text.ops.inductor_ops import InductorOps

        return InductorOps(device)
    from genwright.text.ops.triton_ops import TritonOps

    return TritonOps(device, deterministic)


def new_runner(model: Model, ops: TorchOps, graph: bool, *settings: Any) -> ResidentRunner:
    """With CUDA graphs where every op of a step leaves the host alone."""
    if not ops.captures:
        return ResidentRunner(model, ops, *settings)
    from genwright.text.engine.cuda_graphs import GraphRunner
    from genwright.text.ops.triton_ops import TritonOps

    assert isinstance(ops, TritonOps)
    return GraphRunner(model, ops, *settings, most_graphed=ops.most_graphed(model.cfg, model.blocks) if graph else 0)


def new_loop(runner: ResidentRunner) -> "DecodeLoop | None":
    """A decode loop where attention reads lengths on the device."""
    if not runner.ops.captures or runner.model.cfg.mla is not None:
        return None
    from genwright.text.engine.ahead import DecodeLoop
    from genwright.text.engine.cuda_graphs import GraphRunner

    assert isinstance(runner, GraphRunner)
    return DecodeLoop(runner)
