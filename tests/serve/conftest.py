"""One server of the default model, and one of a tiny model whose answers never end, for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.running import Running, running


@pytest.fixture(scope="session")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The default model and the image model in the box."""
    flags = ("--images", "emoji", "--max-context", "2048", "--model-name", "smollm2")
    with running(smollm2, tmp_path_factory.mktemp("server"), *flags) as started:
        yield started


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from text.tiny_chat import make_chat_model  # and transformers, which takes a while

    return make_chat_model(tmp_path_factory.mktemp("endless") / "endless", context=100_000)


@pytest.fixture(scope="session")
def endless(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A tiny model whose answers are letters without end."""
    with running(endless_model, tmp_path_factory.mktemp("endless-log"), "--max-context", "8192") as started:
        yield started
