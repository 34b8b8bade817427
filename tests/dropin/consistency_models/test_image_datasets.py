"""Batches of a folder: files, classes, crops, mirrors and ranks."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from genwright.images.data.dataset import read_data


def load(data_dir: Path, **settings):
    from cm.image_datasets import load_data

    options = {"batch_size": 4, "image_size": 16, "deterministic": True, "random_flip": False} | settings
    return load_data(data_dir=str(data_dir), **options)


def test_images_and_classes_are_those_of_our_own_reader(data_dir: Path) -> None:
    data = load(data_dir, batch_size=12, class_cond=True)
    images, labels = next(data)
    names = [path.name for path in [*sorted(data_dir.glob("*.png")), *sorted((data_dir / "more").iterdir())]]
    # As the original does: the files of a folder in the order of their names, folders among them.
    assert labels["y"].tolist() == ["ab".index(name[0]) for name in names]
    ours = read_data(data_dir, 16)
    by_name = {Path(name).name: image for name, image in zip(ours.names, ours.images, strict=True)}
    expected = np.stack([by_name[name] for name in names]).astype(np.float32) / 127.5 - 1
    assert np.array_equal(images.numpy(), expected.transpose(0, 3, 1, 2))
    assert torch.equal(next(data)[0], images)  # endlessly


def test_ranks_read_different_files(data_dir: Path, monkeypatch) -> None:
    whole = next(load(data_dir, batch_size=12))[0]
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        assert torch.equal(next(load(data_dir, batch_size=6))[0], whole[rank::2])


def test_random_crops_and_mirrors(data_dir: Path) -> None:
    from cm.image_datasets import random_crop_arr

    picture = Image.fromarray(np.arange(40 * 30 * 3, dtype=np.uint8).reshape(40, 30, 3))
    crops = [random_crop_arr(picture, 16) for _ in range(8)]
    assert {crop.shape for crop in crops} == {(16, 16, 3)} and len({crop.tobytes() for crop in crops}) > 1
    torch.manual_seed(0)
    plain, mirrored = (next(load(data_dir, batch_size=12, random_flip=flip))[0] for flip in (False, True))
    flips = [torch.equal(b, a.flip(2)) for a, b in zip(plain, mirrored, strict=True)]
    same = [torch.equal(b, a) for a, b in zip(plain, mirrored, strict=True)]
    assert all(a != b for a, b in zip(flips, same, strict=True)) and 0 < sum(flips) < 12
    assert not torch.equal(next(load(data_dir, batch_size=12, random_crop=True))[0], plain)
    assert not torch.equal(next(load(data_dir, batch_size=12, deterministic=False))[0], plain)
