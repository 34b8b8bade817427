import pytest
import torch

from genwright.images import checkpoint, pipeline
from genwright.images.unet import UNetConfig
from images.piq_stub import import_piq

TINY = UNetConfig(
    image_size=16,
    num_channels=32,
    num_res_blocks=1,
    channel_mult=(1, 2),
    attention_resolutions=(8,),
    num_head_channels=32,
    num_classes=10,
    resblock_updown=True,
)


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
