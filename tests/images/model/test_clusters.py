from dataclasses import replace

import numpy as np
import pytest
import torch
from images.tiny_unet import TINY

from genwright.errors import UserError
from genwright.images.data.dataset import TrainingImages
from genwright.images.model.checkpoint import Description, draw_weights
from genwright.images.model.clusters import Clusters, find_clusters, told_clusters
from genwright.images.sampling.pipeline import ImageModel

CLUSTERS = Clusters((0, 0, 1, 2, 2, 2), (3, 1, 5, 2, 2, 4), "")


def coloured(colours, labels):
    noise = np.random.default_rng(0).integers(-9, 10, (len(colours), 16, 16, 3))
    images = (np.array(colours)[:, None, None, :] + noise).clip(0, 255).astype(np.uint8)
    names = np.arange(len(colours)).astype(str)
    return TrainingImages(images, np.array(labels), tuple("abc"[: max(labels) + 1]), names)


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


def test_a_class_gives_its_looks_as_often_as_they_are_seen():
    count = 60_000
    labels = torch.arange(count) % 3
    words = torch.randint(2**32, (count,), generator=torch.Generator().manual_seed(0))
    drawn = CLUSTERS.draw(labels, words)
    assert torch.equal(torch.tensor(CLUSTERS.classes)[drawn], labels)
    shares = torch.bincount(drawn, minlength=6) / (count / 3)
    torch.testing.assert_close(shares, torch.tensor([0.75, 0.25, 1, 0.25, 0.25, 0.5]), atol=0.015, rtol=0)
    edges = CLUSTERS.draw(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 2**32 - 1, 0, 2**32 - 1]))
    assert edges.tolist() == [0, 1, 3, 5]


@torch.no_grad()
def test_clusters_begin_as_their_class():
    unet = draw_weights(replace(TINY, num_classes=3), seed=0)
    told = told_clusters(unet, CLUSTERS)
    x, t = torch.randn(6, 3, 16, 16), torch.arange(6.0)
    assert torch.equal(told(x, t, torch.arange(6)), unet(x, t, torch.tensor(CLUSTERS.classes)))


def test_samples_are_of_one_cluster_of_the_class():
    unet = draw_weights(replace(TINY, num_classes=6), seed=0)
    by_class = ImageModel((unet, Description(unet.config, ("a", "b", "c"), clusters=CLUSTERS)), device="cpu")
    by_cluster = ImageModel((unet, Description(unet.config)), device="cpu")
    way = {"sampler": "onestep", "seed": 5}
    batch = by_class.sample(12, classes=[0, 2], **way)
    assert by_class.num_classes == 3 and batch.labels.tolist() == [0, 2] * 6
    seen = set()
    for i in range(12):
        clusters = [cluster for cluster in range(6) if CLUSTERS.classes[cluster] == batch.labels[i]]
        ways = [by_cluster.sample(i + 1, classes=[cluster], **way).array[i] for cluster in clusters]
        same = [cluster for cluster, one in zip(clusters, ways, strict=True) if np.array_equal(one, batch.array[i])]
        assert len(same) == 1
        seen.add(same[0])
    assert len(seen) > 2
    assert np.array_equal(batch.array[:3], by_class.sample(3, classes=[0, 2], **way).array)
    with pytest.raises(UserError, match="between 0 and 2"):
        by_class.sample(1, classes=[3])
    assert set(by_class.sample(30, **way).labels) == {0, 1, 2}


def test_what_cannot_be_split_is_one_sentence():
    data = coloured([(1, 2, 3)] * 4, [0, 0, 2, 2])
    with pytest.raises(UserError, match="class b has no training images"):
        find_clusters(data, 2)
    with pytest.raises(UserError, match="--cluster-size must be 1 or more, not 0"):
        find_clusters(data, 0)
    with pytest.raises(UserError, match="8 pixels or more, not 4"):
        find_clusters(TrainingImages(data.images[:, :4, :4], data.labels, data.label_names, data.names), 2)
    with pytest.raises(UserError, match="without classes"):
        find_clusters(TrainingImages(data.images, None, (), data.names), 2)
