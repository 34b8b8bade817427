from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from images.tiny_unet import TINY
from PIL import Image

from genwright import ImageModel
from genwright.errors import UserError
from genwright.images.model.checkpoint import Description, draw_weights
from genwright.images.model.clusters import Clusters
from genwright.images.sampling import editing

SIZE = TINY.image_size


def orthogonal(vector):
    """A basis whose first column is the vector's direction, by QR as the original makes it."""
    matrix = np.eye(len(vector))
    matrix[:, 0] = vector / np.linalg.norm(vector)
    q = np.linalg.qr(matrix)[0]
    return q * np.sign(q[:, 0].sum())


def image(seed=0):
    return torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def test_colorize_replaces_the_first_coordinate_of_the_originals_basis():
    basis = torch.from_numpy(orthogonal(np.array([0.2989, 0.5870, 0.1140])))
    given, x = image(1), image(2)
    mixed = torch.einsum("nchw,cd->ndhw", x, basis)
    mixed[:, 0] = torch.einsum("nchw,cd->ndhw", given, basis)[:, 0]
    expected = torch.einsum("ndhw,cd->nchw", mixed, basis)
    out = editing.edited(lambda x, sigma: x, given, editing.keep_brightness)(x, 1.0)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_superres_replaces_the_first_coordinate_of_the_originals_basis():
    patch = 4
    basis = torch.from_numpy(orthogonal(np.ones(patch**2)))

    def patches(x):
        tiles = x.view(1, 3, SIZE // patch, patch, SIZE // patch, patch).permute(0, 1, 2, 4, 3, 5)
        return tiles.reshape(1, 3, -1, patch**2) @ basis

    given, x = image(1), image(2)
    expected = patches(x)
    expected[..., 0] = patches(given)[..., 0]
    out = editing.edited(lambda x, sigma: x, given, editing.keep_patch_means(patch))(x, 1.0)
    torch.testing.assert_close(patches(out), expected, rtol=1e-6, atol=1e-6)


def test_inpainting_keeps_black_pixels(tiny):
    given = image(3).float()
    mask = torch.zeros(SIZE, SIZE)
    mask[4:9, 2:11] = 1
    batch = tiny.edit(given, "inpaint", mask, 6, seed=1, steps=40, ts=(0, 22, 39))
    kept = ((given + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    difference = np.abs(batch.array.astype(int) - kept)
    assert difference[:, mask == 0].max() <= 1
    assert (difference[:, mask == 1] > 1).mean() > 0.5
    assert not np.array_equal(batch.array[0], batch.array[1])


def test_superres_of_a_small_image_keeps_its_pixels_as_means(tiny):
    small = image(4).float()[:, :, :4, :4] * 0.2
    array = tiny.edit(small, "superres", None, 2, seed=1, steps=40, ts=(0, 22, 39)).array
    assert array.shape == (2, SIZE, SIZE, 3)
    large, known = editing.task_projection("superres", small, SIZE, None)
    assert large.shape == (1, 3, SIZE, SIZE)
    torch.testing.assert_close(known(large), large)


def test_files_are_read(tmp_path):
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    Image.fromarray(pixels).save(tmp_path / "image.png")
    Image.fromarray(np.array([[0, 255], [100, 200]], np.uint8)).save(tmp_path / "mask.png")
    read = editing.read_image(tmp_path / "image.png")
    torch.testing.assert_close((read[0].permute(1, 2, 0) + 1) * 127.5, torch.from_numpy(pixels).float())
    assert editing.read_mask(tmp_path / "mask.png").tolist() == [[0, 1], [0, 1]]
    grey = np.array([[0, 25700], [12850, 65535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey16.png")
    read = editing.read_image(tmp_path / "grey16.png")
    assert ((read[0, 0] + 1) * 127.5).round().tolist() == [[0, 100], [50, 255]], "16 bits are scaled to 8"
    (tmp_path / "text.png").write_text("hello")
    for name in ("text.png", "missing.png"):
        with pytest.raises(UserError, match=name):
            editing.read_image(tmp_path / name)


@pytest.mark.parametrize(
    ("task", "size", "mask", "words"),
    [
        ("blur", 16, None, "task must be one of .* not 'blur'"),
        ("inpaint", 16, None, "must be given for inpaint"),
        ("colorize", 16, 16, "for no other task"),
        ("inpaint", 17, 17, "The image must be 16x16 for this model, not 17x17"),
        ("inpaint", 16, 8, "The mask must be 16x16 as the image, not 8x8"),
        ("superres", 5, None, "a square one whose side divides 16"),
    ],
)
def test_wrong_edits_are_one_sentence(task, size, mask, words):
    with pytest.raises(UserError, match=words):
        hole = None if mask is None else torch.zeros(mask, mask)
        editing.task_projection(task, torch.zeros(1, 3, size, size), 16, hole)


def labelled_colours(clusters=None):
    """A model whose estimate is a brightness of its label, whatever it is shown, and what its UNet was told."""
    model = ImageModel((draw_weights(replace(TINY, num_classes=6), 0), Description(clusters=clusters)), device="cpu")
    told = []

    def network(x, t, labels, first=0):
        told.append(labels)
        return (labels / 5 * 2 - 1).mul(2).view(-1, 1, 1, 1).expand_as(x)

    model.runner = Mock(side_effect=network, micro_batch=4)
    return model, told


def test_an_edit_takes_the_cluster_nearest_to_the_known_part():
    mask = torch.zeros(SIZE, SIZE)
    mask[:, 8:] = 1
    given = torch.full((1, 3, SIZE, SIZE), 1 / 5)  # the brightness of label 3
    way = {"consistency": False, "sigma_max": 80.0, "steps": 2}
    model, told = labelled_colours(Clusters((0, 0, 1, 1, 2, 2), (9, 9, 9, 9, 9, 9), ""))
    for classes, label, nearest in ((None, 1, 3), ([0], 0, 1), ([2], 2, 4)):
        for seed in (1, 2):
            batch = model.edit(given, "inpaint", mask, 3, seed=seed, classes=classes, **way)
            assert batch.labels.tolist() == [label] * 3 and told[-1].tolist() == [nearest] * 3
    batch = model.edit(given, "inpaint", mask, 4, seed=1, classes=[2, 0], **way)
    assert batch.labels.tolist() == [2, 0, 2, 0] and told[-1].tolist() == [4, 1, 4, 1]
    # Without clusters, the class is found if none is asked for.
    model, told = labelled_colours()
    assert model.edit(given, "colorize", None, 2, seed=1, **way).labels.tolist() == [3, 3]
    assert model.edit(given, "colorize", None, 2, seed=1, classes=[5], **way).labels.tolist() == [5, 5]
