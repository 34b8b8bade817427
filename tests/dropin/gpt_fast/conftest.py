"""The drop-in's modules under the original's names, and tiny checkpoints."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dropin.dropin_modules import imported_from
from dropin.gpt_fast.tiny_gpt_fast import write_checkpoints


@pytest.fixture(autouse=True)
def gpt_fast() -> Iterator[None]:
    with imported_from("gpt_fast"):
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    with imported_from("gpt_fast"):
        write_checkpoints(folder)
    return folder


@pytest.fixture(scope="session")
def original() -> Path:
    """A checkout of gpt-fast, which is not part of this project."""
    if (path := os.environ.get("GENWRIGHT_GPT_FAST")) is None:
        pytest.skip("GENWRIGHT_GPT_FAST names no checkout of gpt-fast")
    return Path(path)
