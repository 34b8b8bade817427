"""Run a script of DeepSeek's on a CPU, unmodified: `original_on_cpu.py SCRIPT ARGS`.

Tensors for a GPU are made on the CPU, and NCCL is gloo. Modules come from our folder if it is on the path; else from
the script's, where `kernel`, which needs a GPU, is replaced by its formulas.
"""

import runpy
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def weight_dequant(x: torch.Tensor, s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    spread = s.repeat_interleave(block_size, 0)[: x.shape[0]].repeat_interleave(block_size, 1)[:, : x.shape[1]]
    return (x.float() * spread).to(torch.get_default_dtype())


def act_quant(*_: Any) -> None:
    raise NotImplementedError("the original calls this with another gemm_impl only")


_join, _load = dist.init_process_group, safetensors.torch.load_file
dist.init_process_group = lambda backend: _join("gloo")
safetensors.torch.load_file = lambda file, **_: _load(file)
torch.cuda.set_device = lambda device: None
torch.cuda.empty_cache = lambda: None
if find_spec("kernel") is None:
    plain: Any = types.ModuleType("kernel")
    plain.weight_dequant, plain.act_quant, plain.fp8_gemm = weight_dequant, act_quant, act_quant
    sys.modules["kernel"] = plain
sys.argv = sys.argv[1:]
sys.path.append(str(Path(sys.argv[0]).parent))
with OnCpu():
    runpy.run_path(sys.argv[0], run_name="__main__")
