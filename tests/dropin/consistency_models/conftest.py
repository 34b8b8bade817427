"""The drop-in's modules under the original's names, tiny checkpoints and a folder of images."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from dropin.consistency_models.tiny import save_tiny
from PIL import Image

from genwright.dropin.run import folder

sys.path.insert(0, str(folder("consistency_models")))


@pytest.fixture(scope="session")
def original() -> Path:
    """A checkout of consistency_models, which is not part of this project."""
    if (path := os.environ.get("GENWRIGHT_CONSISTENCY_MODELS")) is None:
        pytest.skip("GENWRIGHT_CONSISTENCY_MODELS names no checkout of consistency_models")
    return Path(path)


@pytest.fixture(scope="session")
def tiny_pt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "tiny.pt")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of two classes, half of them in a folder of their own."""
    path, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (path / "more").mkdir()
    for i in range(12):
        pixels = draw.integers(0, 255, (24 + i, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save((path / "more" if i % 3 else path) / f"{'ab'[i % 2]}_{i:02d}.png")
    return path


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process group of one rank, and a logger whose folder is tmp_path/log; both end with the test."""
    from cm import dist_util, logger

    monkeypatch.setenv("OPENAI_LOGDIR", str(tmp_path / "log"))
    monkeypatch.setattr(logger.Logger, "CURRENT", None)
    torch.manual_seed(0)
    np.random.seed(0)
    dist_util.setup_dist()
    logger.configure()
    yield tmp_path / "log"
    logger.get_current().close()
    dist.destroy_process_group()
