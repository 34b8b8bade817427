import numpy as np
import pytest
from images.coloured_noise import coloured

from genwright.errors import UserError
from genwright.images.metrics.pixel_metrics import compare_images, distinct, near_copies, read_images


def test_copies_are_found():
    reference, samples = coloured(30, 0), coloured(20, 1)
    samples.images[:5] = reference.images[7]
    result = compare_images(samples, reference)
    assert result == {"near_copies": 0.25, "distinct": 16 / 20, "distinct_reference": 1.0}


def test_what_cannot_be_compared_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="4 x 4 pixels, not 8 x 8"):
        compare_images(coloured(4, 0), coloured(4, 0, size=4))
    with pytest.raises(UserError, match="two or more"):
        compare_images(coloured(1, 0), coloured(4, 0))
    np.savez(tmp_path / "features.npz", features=np.zeros((3, 2)))
    assert read_images(tmp_path / "features.npz") is None
    assert read_images(tmp_path / "missing.npz") is None


def test_repeated_images_are_not_distinct():
    a, b = np.random.default_rng(0).integers(20, 236, (2, 8, 8, 3), dtype=np.uint8)
    assert distinct(np.stack([a, a + 15, b, a - 17, b])) == 3 / 5


def test_near_copies_see_mirrored_ones():
    originals = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    near = np.clip(originals[:2, :, ::-1].astype(int) + 10, 0, 255).astype(np.uint8)
    assert near_copies(np.concatenate([near, 255 - originals[:2]]), originals) == 0.5
