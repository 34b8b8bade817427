"""Products of few tokens: a small C++ kernel, compiled for this processor when it is first needed.

Where there is no compiler, or it fails, everything goes through torch as before.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import linear

from genwright.kernels.cache import cache_folder, lock
from genwright.kernels.cpu.amx import cpu_flags, has_bf16

SOURCE = Path(__file__).with_name("products.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC")
MOST_TOKENS = 48  # with more, MKL's products are faster (Ice Lake, 2 cores)
MOST_TOKENS_BF16 = 8  # where the processor multiplies bf16 itself


def few_tokens_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias on any device, for inference: by the kernel where that is faster, else by torch."""
    most = MOST_TOKENS_BF16 if x.dtype == torch.bfloat16 and has_bf16() else MOST_TOKENS
    if len(x) <= most and takes(x, weight, bias):
        return product(x, weight, bias)
    return linear(x, weight, bias)


def takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether there is a kernel for this: on a CPU, matrices in float32 or bf16."""
    return (
        weight.dtype in (torch.float32, torch.bfloat16)
        and weight.device.type == "cpu"
        and x.dtype == weight.dtype
        and (bias is None or bias.dtype == weight.dtype)
        and x.dim() == 2
        and weight.is_contiguous()
        and kernel() is not None
    )


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias of what the kernel takes, summed in float32; a row's bits do not depend on the other rows.

    x [tokens, inputs], weight [outputs, inputs], bias [outputs]
    """
    run = kernel()
    assert run is not None
    (tokens, inputs), outputs = x.shape, len(weight)
    if weight.shape[1] != inputs:
        raise ValueError(f"rows of {inputs} do not fit a weight of {tuple(weight.shape)}")
    wide = x.float().contiguous()
    shift = None if bias is None else bias.float().contiguous()
    y = wide.new_empty(tokens, outputs)
    run(
        wide.data_ptr(),
        weight.data_ptr(),
        weight.dtype == torch.bfloat16,
        None if shift is None else shift.data_ptr(),
        y.data_ptr(),
        tokens,
        inputs,
        outputs,
        torch.get_num_threads(),
    )
    return y.to(x.dtype)


@cache
def kernel() -> Callable[..., None] | None:
    """The compiled `product` of products.cpp, if it can be had."""
    path = build(cache_folder() / "kernels")
    try:
        # It leaves GOMP_parallel open, which torch's OpenMP runtime fills in.
        function = ctypes.CDLL(str(path)).product if path else None
    except OSError:
        return None
    if function is not None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [pointer, pointer, ctypes.c_int, pointer, pointer, integer, integer, integer, ctypes.c_int]
        function.restype = None
    return function


def build(folder: Path) -> Path | None:
    """The library in that folder, compiled now if it is not there; None where that does not work."""
    processor = " ".join((platform.system(), platform.machine(), *sorted(cpu_flags())))
    key = hashlib.sha256("\0".join((SOURCE.read_text(encoding="utf-8"), *FLAGS, processor)).encode()).hexdigest()
    target = folder / f"products-{key[:16]}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if not target.exists():  # another process may have been faster
                part = Path(scratch) / target.name
                command = [compiler, *FLAGS, "-o", str(part), str(SOURCE)]
                subprocess.run(command, capture_output=True, check=True, timeout=60)
                part.rename(target)
    except (OSError, subprocess.SubprocessError):
        return None
    return target
