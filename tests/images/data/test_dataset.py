import numpy as np
import pytest
import torch
from PIL import Image

from genwright.errors import UserError
from genwright.images.data.dataset import Batches, ImageDataset, read_data


def pixels(count, size=4):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def test_npz_by_either_names(tmp_path):
    images, labels = pixels(6), np.array([0, 1, 1, 2, 2, 2])
    np.savez(tmp_path / "a.npz", images=images, labels=labels, label_names=["x", "y", "z"], names=list("abcdef"))
    np.savez(tmp_path / "b.npz", images, labels)
    named, sampled = read_data(tmp_path / "a.npz"), read_data(tmp_path / "b.npz")
    assert named.label_names == ("x", "y", "z") and named.num_classes == 3 and sampled.label_names == ("0", "1", "2")
    assert np.array_equal(named.images, sampled.images) and np.array_equal(named.labels, sampled.labels)


@pytest.mark.parametrize("layout", ["subfolders", "prefixes", "neither"])
def test_folders(tmp_path, layout):
    for i, (label, colour) in enumerate([("cat", 10), ("dog", 200), ("cat", 11)]):
        name = {"subfolders": f"{label}/{i}.png", "prefixes": f"{label}_{i}.png", "neither": f"{i}.png"}[layout]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 30), (colour,) * 3).save(tmp_path / name)
    data = read_data(tmp_path, image_size=8)
    assert data.images.shape == (3, 8, 8, 3)
    if layout == "neither":
        assert data.labels is None and data.num_classes is None
    else:
        assert data.label_names == ("cat", "dog")
        assert sorted(zip(data.labels.tolist(), data.images[:, 0, 0, 0].tolist(), strict=True)) == [
            (0, 10),
            (0, 11),
            (1, 200),
        ]


def test_the_middle_of_a_wide_image_is_kept(tmp_path):
    stripes = np.zeros((8, 24, 3), np.uint8)
    stripes[:, 8:16] = 255
    Image.fromarray(stripes).save(tmp_path / "a.png")
    assert (read_data(tmp_path, image_size=8).images == 255).all()


def test_split_keeps_names_together_and_classes_apart():
    names = np.array([f"{i // 3}" for i in range(90)])  # three variants of each of 30 names
    data = ImageDataset(pixels(90), np.arange(90) // 45, ("a", "b"), names)
    train, held = data.split(0.2)
    assert len(held) == 18 and len(train) == 72 and not set(train.names) & set(held.names)
    assert np.bincount(held.labels).tolist() == [9, 9]
    assert np.array_equal(held.names, data.split(0.2)[1].names)
    with pytest.raises(UserError, match="leaves one side empty; pass another --hold-out"):
        data.split(0.001)


def test_batches_balance_and_mirror():
    images = np.zeros((100, 2, 2, 3), np.uint8)
    images[:, :, 1] = 255
    labels = np.repeat([0, 1], [90, 10])
    data = ImageDataset(images, labels, ("many", "few"), np.arange(100).astype(str))
    torch.manual_seed(0)
    x, drawn = Batches(data, torch.device("cpu"), balance=0.5, mirrored=("few",)).draw(4000)
    assert drawn.float().mean() == pytest.approx(1 / 4, abs=0.03)  # sqrt(10) of sqrt(10) + sqrt(90)
    mirrored = x[:, 0, 0, 0] == 1
    assert not mirrored[drawn == 0].any() and mirrored[drawn == 1].float().mean() == pytest.approx(0.5, abs=0.06)
    assert x.min() == -1 and x.max() == 1
    with pytest.raises(UserError, match="no class 'none' to mirror"):
        Batches(data, torch.device("cpu"), mirrored=("none",))


def test_wrong_data_is_one_sentence(tmp_path):
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 4, 4, 3)))
    np.savez(tmp_path / "labels.npz", images=pixels(2), labels=np.array([0, -1]))
    np.savez(tmp_path / "wide.npz", images=np.zeros((2, 4, 6, 3), np.uint8))
    (tmp_path / "junk.npz").write_bytes(b"junk")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"junk")
    (tmp_path / "broken").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(
        tmp_path / "broken" / "a.png"
    )
    data = bytearray((tmp_path / "broken" / "a.png").read_bytes())
    data[data.index(b"IDAT") - 2] -= 1  # the length of the pixels, after which Pillow looks for a chunk's name
    (tmp_path / "broken" / "a.png").write_bytes(data)
    for name, words in [
        ("missing", "no file or folder"),
        ("floats.npz", "uint8 images"),
        ("labels.npz", "whole numbers, 0 or more"),
        ("wide.npz", "must be square"),
        ("junk.npz", "not a readable .npz"),
        ("empty", "holds no images"),
        ("bad", "not an image"),
        ("broken", "a.png is not an image"),
    ]:
        with pytest.raises(UserError, match=words):
            read_data(tmp_path / name, 8 if "." not in name else None)
    with pytest.raises(UserError, match="--image-size"):
        read_data(tmp_path / "empty")
