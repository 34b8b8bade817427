"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest
import torch

FULL_SIZE = bool(os.environ.get("GENWRIGHT_FULL_SIZE"))

if not torch.cuda.is_available():
    # Triton reads it when it is first imported, which other tests' libraries do.
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # tiny models: a second thread costs more than it brings, and two workers share two cores


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Whether tests run at the sizes of the acceptance criteria."""
    return FULL_SIZE


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run: on the GPU, or in Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real default model."""
    from genwright.text.catalogue import pull

    return pull("smollm2")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
