"""The drop-in's modules under the original's names, and a tiny OPT."""

import os
import sys
from pathlib import Path

import pytest
from dropin.flexllmgen.tiny_opt import Tiny, make_tiny

from genwright.dropin.run import folder

sys.path.insert(0, str(folder("flexllmgen")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("opt_weights"))


@pytest.fixture(scope="session")
def original() -> Path:
    """A checkout of FlexLLMGen, which is not part of this project."""
    if (path := os.environ.get("GENWRIGHT_FLEXLLMGEN")) is None:
        pytest.skip("GENWRIGHT_FLEXLLMGEN names no checkout of FlexLLMGen")
    return Path(path)
