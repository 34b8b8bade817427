"""The drop-in's modules under the names of PyTorch's benchmark."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dropin.dropin_modules import imported_from


@pytest.fixture(autouse=True)
def torchbench() -> Iterator[None]:
    with imported_from("torchbench"):
        yield


@pytest.fixture(scope="session")
def original() -> Path:
    """PyTorch's folder benchmarks/gpt_fast, which is not part of this project."""
    if (path := os.environ.get("GENWRIGHT_TORCHBENCH")) is None:
        pytest.skip("GENWRIGHT_TORCHBENCH names no copy of PyTorch's benchmarks/gpt_fast")
    return Path(path)
