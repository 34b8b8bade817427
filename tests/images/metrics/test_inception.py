import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from genwright.errors import UserError
from genwright.images.metrics.inception import Inception, shapes


def draw(name, shape):
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if name.endswith(("running_var", "bn.weight")):
        return uniform + 0.5
    if len(shape) > 1:
        return (2 * uniform - 1) * (6 / np.prod(shape[1:])) ** 0.5
    return uniform - 0.5


@pytest.fixture(scope="module")
def state():
    return {name: draw(name, shape) for name, shape in shapes().items()}


def waves():
    y, x = np.mgrid[0:48, 0:64]
    wave = lambda i, c: (127.5 + 127.5 * np.sin(x / (3 + i + c) + y / (5 + c) * (i + 1))).astype(np.uint8)  # noqa: E731
    return np.stack([np.stack([wave(i, c) for c in range(3)], axis=-1) for i in range(2)])


def test_features_equal_torch_fidelitys(state):
    # data/inception_features.json: what torch-fidelity 0.4.0's FeatureExtractorInceptionV3 gives for these weights and
    # images: every 64th pool_3 feature, every 100th spatial one (a hook on Mixed_6d.branch1x1), every 50th probability.
    expected = json.loads((Path(__file__).parents[1] / "fixtures" / "inception_features.json").read_text())
    features, spatial, probabilities = Inception(state).features(waves())
    assert features.shape == (2, 2048) and spatial.shape == (2, 2023) and probabilities.shape == (2, 1008)
    np.testing.assert_allclose(features[:, ::64], expected["features"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(spatial[:, ::100], expected["spatial"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(probabilities[:, ::50], expected["probabilities"], rtol=1e-3, atol=1e-7)


def test_weights_of_another_network_are_one_sentence(state):
    with pytest.raises(UserError, match="has no Conv2d_1a_3x3"):
        Inception({})
    with pytest.raises(UserError, match=r"fc.weight in .* has shape \[1000, 2048\], but this Inception shape needs"):
        Inception(state | {"fc.weight": torch.zeros(1000, 2048)})
