"""The device of this folder's tests, on which CUDA C++ kernels run."""

import pytest
import torch


@pytest.fixture
def device(cuda_device: str) -> str:
    return cuda_device


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell what a Hopper GPU would do, wherever the test runs."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
