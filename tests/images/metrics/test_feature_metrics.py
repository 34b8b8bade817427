import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from genwright.errors import UserError
from genwright.images.metrics import feature_metrics

RNG = np.random.default_rng(0)


def gaussian(n, d, shift=0.0, scale=1.0):
    return RNG.normal(size=(n, d)) @ RNG.normal(size=(d, d)) * scale + shift


@pytest.mark.parametrize("n", [500, 20])  # 20 rows of 32 numbers have singular covariances
def test_frechet_distance_equals_scipy(n):
    a, b = feature_metrics.fit(gaussian(n, 32)), feature_metrics.fit(gaussian(n, 32, shift=0.3, scale=1.5))
    root = scipy.linalg.sqrtm(a.sigma.astype(complex) @ b.sigma).real
    expected = ((a.mu - b.mu) ** 2).sum() + np.trace(a.sigma + b.sigma - 2 * root)
    assert feature_metrics.frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)
    assert feature_metrics.frechet_distance(a, a) == pytest.approx(0, abs=1e-7 * np.trace(a.sigma))


def test_statistics_are_numpys():
    features = gaussian(50, 4)
    mu, sigma = feature_metrics.fit(features)
    np.testing.assert_allclose(mu, features.mean(axis=0))
    np.testing.assert_allclose(sigma, np.cov(features.T))


def brute_force(reference, samples):
    def distance(a, b):
        return np.sqrt(((a - b) ** 2).sum())

    def share(points, manifold):
        radii = [sorted(distance(a, b) for j, b in enumerate(manifold) if j != i)[2] for i, a in enumerate(manifold)]
        return np.mean([any(distance(p, c) <= r for c, r in zip(manifold, radii, strict=True)) for p in points])

    return share(samples, reference), share(reference, samples)


def test_precision_and_recall_equal_brute_force(monkeypatch):
    monkeypatch.setattr(feature_metrics, "ROWS", 16)  # several blocks
    reference, samples = RNG.normal(size=(70, 6)) + 100, RNG.normal(size=(60, 6)) * 1.3 + 100.5
    expected = brute_force(reference, samples)
    assert 0.1 < expected[0] < 0.99 and 0.1 < expected[1] < 0.99
    assert feature_metrics.precision_recall(reference, samples) == pytest.approx(expected)


def test_inception_score_is_the_mutual_information(monkeypatch):
    probabilities = RNG.dirichlet(np.ones(5) * 0.3, size=40)
    mutual = scipy.stats.entropy(probabilities.mean(axis=0)) - scipy.stats.entropy(probabilities, axis=1).mean()
    assert feature_metrics.inception_score(probabilities) == pytest.approx(np.exp(mutual))
    one_hot = np.eye(5)[np.arange(40) % 5]
    assert feature_metrics.inception_score(one_hot) == pytest.approx(5)
    monkeypatch.setattr(feature_metrics, "SPLIT", 20)
    halves = [feature_metrics.inception_score(half) for half in (probabilities[:20], probabilities[20:])]
    assert feature_metrics.inception_score(probabilities) == pytest.approx(np.mean(halves))


def test_kid_is_piqs(piq):
    a, b = gaussian(60, 16, scale=0.3), gaussian(60, 16, shift=0.2, scale=0.4)
    expected = piq.KID(average=False).compute_metric(torch.from_numpy(a), torch.from_numpy(b))
    assert feature_metrics.kernel_distance(a, b) == pytest.approx(float(expected), rel=1e-6)
    # Subsets are as good as the whole, up to their noise; and it is unbiased: of the same distribution, around 0.
    assert feature_metrics.kernel_distance(a, b, subsets=300, subset=30) == pytest.approx(float(expected), rel=0.2)
    points = RNG.normal(size=(40, 30, 8))
    same = [feature_metrics.kernel_distance(x, y) for x, y in zip(points[:20], points[20:], strict=True)]
    assert abs(np.mean(same)) < 3 * np.std(same) / 20**0.5


def test_few_images_are_warned_of(monkeypatch):
    few = feature_metrics.FeatureSet(features=gaussian(30, 8))
    assert "30 images" in feature_metrics.too_few(few, feature_metrics.FeatureSet(features=gaussian(40, 8)))
    assert feature_metrics.too_few(feature_metrics.FeatureSet(), feature_metrics.FeatureSet()) is None
    monkeypatch.setattr(feature_metrics, "FEW", 30)
    assert feature_metrics.too_few(few, few) is None


def test_files_give_what_they_hold(tmp_path):
    features, spatial, probabilities = gaussian(30, 8), gaussian(30, 5), RNG.dirichlet(np.ones(4), size=30)
    np.savez(tmp_path / "samples.npz", features=features, spatial=spatial, probabilities=probabilities)
    mu, sigma = feature_metrics.fit(gaussian(30, 8))
    np.savez(tmp_path / "reference.npz", mu=mu, sigma=sigma)
    samples = feature_metrics.read_features(tmp_path / "samples.npz", None)
    reference = feature_metrics.read_features(tmp_path / "reference.npz", None)
    result = feature_metrics.compare(samples, reference)
    assert set(result) == {"fid", "inception_score"}
    given = feature_metrics.Statistics(mu, sigma)
    assert result["fid"] == feature_metrics.frechet_distance(feature_metrics.fit(features), given)
    same = feature_metrics.compare(samples, samples)
    assert set(same) == {"fid", "sfid", "inception_score", "kid", "precision", "recall"}
    assert same["precision"] == same["recall"] == 1


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"arr_0": np.zeros((2, 4, 4, 3), np.uint8)}, "need Inception weights"),
        ({"features": np.full((5, 2), np.nan)}, "features in .* must hold finite numbers"),
        (
            {"features": np.zeros((5, 2)), "probabilities": np.full((5, 2), np.inf)},
            "probabilities in .* must hold finite",
        ),
        ({"mu": np.array([np.nan]), "sigma": np.zeros((1, 1))}, "mu in .* must hold finite"),
        ({"x": np.zeros(2)}, "must hold images .* but holds x"),
        ({"features": np.zeros(5)}, "two rows or more"),
        ({"mu": np.zeros(3), "sigma": np.zeros((2, 2))}, "a vector and a square matrix"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path, arrays, words):
    np.savez(tmp_path / "file.npz", **arrays)
    with pytest.raises(UserError, match=words):
        feature_metrics.read_features(tmp_path / "file.npz", None)


def test_unreadable_files_are_one_sentence(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "objects.npz", features=np.array([{}], dtype=object))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    for name in ("text.npz", "objects.npz", "plain.npy", "missing.npz"):
        with pytest.raises(UserError, match=name):
            feature_metrics.read_features(tmp_path / name, None)
    with pytest.raises(UserError, match="not 2 and 3"):
        feature_metrics.frechet_distance(feature_metrics.fit(gaussian(9, 2)), feature_metrics.fit(gaussian(9, 3)))
    with pytest.raises(UserError, match="more than 3 images"):
        feature_metrics.precision_recall(gaussian(3, 2), gaussian(9, 2))
