"""Images that memory may not hold: what is drawn from disk is what is drawn from memory."""

import numpy as np
import pytest
import torch
from PIL import Image

from genwright.images.data import streaming
from genwright.images.data.dataset import Batches, read_data
from genwright.images.data.streaming import StreamedImages, map_member
from genwright.images.model.unet import new_unet
from genwright.images.model.unet_config import UNetConfig
from genwright.images.training.clustering import find_clusters
from genwright.images.training.trainer import Trainer
from genwright.images.training.training_settings import TrainerSettings


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(params=["npz", "npy", "folder"])
def source(request, tmp_path, pixels):
    path = tmp_path / f"data.{request.param}"
    if request.param == "npz":
        np.savez(path, images=pixels, labels=np.arange(12) % 3)
    elif request.param == "npy":
        np.save(path, pixels)
    else:
        for i, image in enumerate(pixels):
            (path / f"{i % 3}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / f"{i % 3}" / f"{i:02}.png")
    return path


def both(source, monkeypatch):
    held = read_data(source, 8)
    monkeypatch.setattr(streaming, "HELD", 100)
    streamed = read_data(source, 8)
    assert isinstance(held.images, np.ndarray) and isinstance(streamed.images, StreamedImages)
    return held, streamed


def test_streamed_images_are_the_held_ones(source, monkeypatch):
    held, streamed = both(source, monkeypatch)
    rows = np.array([7, 2, 2, 11])
    assert np.array_equal(streamed.images[rows], held.images[rows]) and streamed.images.shape == held.images.shape
    parts = [data.split(0.3) for data in (held, streamed)]
    for kept, read in zip(*parts, strict=True):
        assert isinstance(read.images, StreamedImages) and np.array_equal(read.images[:], kept.images)
    some = streamed.in_memory(5)
    assert len(some) == 5 and isinstance(some.images, np.ndarray) and held.in_memory(5) is held


@pytest.mark.parametrize("source", ["npz"], indirect=True)
def test_training_is_the_same_to_the_bit(source, monkeypatch):
    held, streamed = both(source, monkeypatch)
    assert find_clusters(held, 2)[1] == find_clusters(streamed, 2)[1]
    config = UNetConfig(8, 32, 1, (1,), num_head_channels=32, num_classes=3)
    weights, read = [], []
    for data in (held, streamed):
        batches = Batches(data, torch.device("cpu"), mirrored=("all",))
        if data is streamed:
            plain = data.images.read
            data.images.read = lambda rows, plain=plain: read.append(rows) or plain(rows)
        trainer = Trainer(TrainerSettings(steps=2, batch_size=4, accumulate=2, lr=1e-3), new_unet(config, 0), batches)
        trainer.run(2)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in trainer.parameters]))
    assert torch.equal(*weights)
    # Every micro-batch was read once: those after the first ahead of time, and one more at the end.
    assert len(read) == 5 and all(len(rows) == 2 for rows in read)


def test_what_cannot_be_mapped_is_read(tmp_path, pixels):
    np.savez_compressed(tmp_path / "packed.npz", images=pixels)
    np.savez(tmp_path / "fortran.npz", images=np.asfortranarray(pixels))
    np.savez(tmp_path / "plain.npz", images=pixels)
    for name in ("packed", "fortran", "plain"):
        mapped = map_member(tmp_path / f"{name}.npz", "images")
        assert isinstance(mapped, np.memmap) if name == "plain" else mapped is None
        assert np.array_equal(read_data(tmp_path / f"{name}.npz").images, pixels)
