"""The triton backend on a GPU, or on a CPU by the emulator of CUDA kernels and the interpreter of Triton's."""

import pytest
import torch


@pytest.fixture
def ops(cuda_device: str):
    from genwright.text.ops.triton_ops import TritonOps

    ops = TritonOps(torch.device(cuda_device))
    ops._pdl = ops._pdl and cuda_device == "cuda"  # Triton's interpreter does not have it
    return ops
