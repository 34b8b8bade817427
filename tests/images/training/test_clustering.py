import numpy as np
import pytest

from genwright.errors import UserError
from genwright.images.data.dataset import ImageDataset
from genwright.images.training.clustering import find_clusters


def coloured(colours, labels):
    noise = np.random.default_rng(0).integers(-9, 10, (len(colours), 16, 16, 3))
    images = (np.array(colours)[:, None, None, :] + noise).clip(0, 255).astype(np.uint8)
    names = np.arange(len(colours)).astype(str)
    return ImageDataset(images, np.array(labels), tuple("abc"[: max(labels) + 1]), names)


def test_alike_images_of_a_class_share_a_cluster():
    red, blue, green = (200, 20, 20), (20, 20, 200), (20, 200, 20)
    data = coloured([red, blue, red, green, blue, red, blue, green, green], [0, 0, 0, 1, 0, 0, 0, 2, 2])
    found, clusters = find_clusters(data, 3)
    assert clusters.classes == (0, 0, 1, 2) and clusters.counts == (3, 3, 1, 2)
    for rows in ([0, 2, 5], [1, 4, 6], [3], [7, 8]):
        assert len(set(found[rows])) == 1
    assert len(set(found)) == 4


def test_clusters_are_halves_of_halves():
    rng = np.random.default_rng(1)
    data = coloured(rng.integers(10, 246, (100, 3)).tolist(), [0] * 73 + [1] * 27)
    found, clusters = find_clusters(data, 10)
    # 73 is halved three times, to 9 or 10, and 27 twice, to 6 or 7.
    assert sorted(clusters.counts[:8]) == [9] * 7 + [10] and sorted(clusters.counts[8:]) == [6, 7, 7, 7]
    assert np.array_equal(np.array(clusters.classes)[found], data.labels)
    again, same = find_clusters(data, 10)
    assert np.array_equal(again, found) and same == clusters
    assert find_clusters(data[np.arange(100)[::-1]], 10)[1] != clusters  # as many of each, but others


def test_what_cannot_be_split_is_one_sentence():
    data = coloured([(1, 2, 3)] * 4, [0, 0, 2, 2])
    with pytest.raises(UserError, match="class b has no training images"):
        find_clusters(data, 2)
    with pytest.raises(UserError, match="--cluster-size must be 1 or more, not 0"):
        find_clusters(data, 0)
    with pytest.raises(UserError, match="8 pixels or more, not 4"):
        find_clusters(ImageDataset(data.images[:, :4, :4], data.labels, data.label_names, data.names), 2)
    with pytest.raises(UserError, match="needs images with classes"):
        find_clusters(ImageDataset(data.images, None, (), data.names), 2)
