"""The device of this folder's tests, on which CUDA C++ kernels run."""

import pytest


@pytest.fixture
def device(cuda_device: str) -> str:
    return cuda_device
