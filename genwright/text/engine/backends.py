"""Which backend computes a model, and the runner and decode loop that it allows."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from genwright.errors import UserError
from genwright.text.engine.executor import ResidentRunner
from genwright.text.model import Model
from genwright.text.ops.deterministic import Deterministic
from genwright.text.ops.torch_ops import Reference

if TYPE_CHECKING:
    from genwright.text.engine.ahead import DecodeLoop

BACKENDS = ("auto", "reference", "triton")


def pick_backend(name: str, device: torch.device, deterministic: bool, compiled: bool) -> Reference:
    """`auto` is triton on an NVIDIA GPU, and the reference elsewhere."""
    if name not in BACKENDS:
        raise UserError(f"the backend should be one of {', '.join(BACKENDS)}, and is {name!r:.60}.")
    able = device.type == "cuda" and find_spec("triton") is not None
    if (name == "triton" or compiled) and not able:
        needs = "compile" if compiled else "the triton backend"
        raise UserError(f"{needs} needs an NVIDIA GPU and the package triton; the device here is {device.type}.")
    if compiled and (name == "reference" or deterministic):
        raise UserError("compile goes with the triton backend and without deterministic.")
    if name == "reference" or not able:
        return Deterministic() if deterministic else Reference()
    if compiled:
        from genwright.text.ops.inductor_ops import Compiled

        return Compiled(device)
    from genwright.text.ops.triton_ops import Fused, FusedDeterministic

    return FusedDeterministic(device) if deterministic else Fused(device)


def new_runner(model: Model, ops: Reference, graph: bool, *settings: Any) -> ResidentRunner:
    """With CUDA graphs where every op of a step leaves the host alone."""
    if not ops.fused:
        return ResidentRunner(model, ops, *settings)
    from genwright.text.engine.cuda_graphs import GraphRunner
    from genwright.text.ops.triton_ops import Fused

    assert isinstance(ops, Fused)
    return GraphRunner(model, ops, *settings, most_graphed=ops.most_graphed(model.cfg, model.blocks) if graph else 0)


def new_loop(runner: ResidentRunner) -> "DecodeLoop | None":
    """A decode loop where attention reads lengths on the device."""
    if not runner.ops.fused or runner.model.cfg.mla is not None:
        return None
    from genwright.text.engine.ahead import DecodeLoop
    from genwright.text.engine.cuda_graphs import GraphRunner

    assert isinstance(runner, GraphRunner)
    return DecodeLoop(runner)
