"""The drop-in's modules under the original's names, and tiny checkpoints."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dropin.deepseek.tiny_deepseek import SHAPES, write_checkpoint
from dropin.dropin_modules import imported_from


@pytest.fixture(autouse=True)
def deepseek() -> Iterator[None]:
    with imported_from("deepseek"):
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each shape: a Hugging Face folder `NAME`, shards `NAME-mp1` and `NAME-mp2`, and its `NAME.json`."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with imported_from("deepseek"):
        for name in SHAPES:
            write_checkpoint(folder, name)
    return folder


@pytest.fixture(scope="session")
def original() -> Path:
    """The folder `inference` of a checkout of DeepSeek-V3, which is not part of this project."""
    if (path := os.environ.get("GENWRIGHT_DEEPSEEK")) is None:
        pytest.skip("GENWRIGHT_DEEPSEEK names no checkout of DeepSeek-V3")
    return Path(path) / "inference"
