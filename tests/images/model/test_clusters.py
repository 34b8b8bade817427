from dataclasses import replace

import numpy as np
import pytest
import torch
from images.tiny_unet import TINY

from genwright.errors import UserError
from genwright.images.model.checkpoint import Description, draw_weights
from genwright.images.model.clusters import Clusters, classes_to_clusters
from genwright.images.sampling.pipeline import ImageModel

CLUSTERS = Clusters((0, 0, 1, 2, 2, 2), (3, 1, 5, 2, 2, 4), "")


def test_clusters_are_drawn_in_proportion_to_their_counts():
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
    widened = classes_to_clusters(unet, CLUSTERS)
    x, t = torch.randn(6, 3, 16, 16), torch.arange(6.0)
    assert torch.equal(widened(x, t, torch.arange(6)), unet(x, t, torch.tensor(CLUSTERS.classes)))


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
