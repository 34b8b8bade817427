import pytest
import torch
from images.piq_stub import import_piq
from images.tiny_unet import TINY

from genwright.images.model import checkpoint
from genwright.images.sampling import pipeline


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "tiny.pt"
    torch.save(checkpoint.draw_weights(TINY, seed=0).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file):
    return pipeline.ImageModel(str(tiny_file), config=TINY, device="cpu")


@pytest.fixture
def piq(monkeypatch):
    return import_piq(monkeypatch)
