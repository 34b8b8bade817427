"""The evaluator and the ternary search, with a small network in Inception's place."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dropin.consistency_models.tiny import flags

from genwright.errors import UserError
from genwright.images.metrics import feature_metrics


class Features:
    """Means of the quarters of an image in place of Inception's features."""

    device, classifier = torch.device("cpu"), torch.linspace(-1, 1, 36).view(3, 12)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1) / 255
        return pooled, pooled[:, :5] ** 2

    def features(self, images: np.ndarray) -> tuple[np.ndarray, ...]:
        pooled, spatial = self(torch.from_numpy(images).permute(0, 3, 1, 2).float())
        return tuple(t.numpy() for t in (pooled, spatial, (pooled @ self.classifier.T).softmax(dim=1)))


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    draw, paths = np.random.default_rng(0), [tmp_path / "reference.npz", tmp_path / "samples.npz"]
    for path in paths:
        np.savez(path, draw.integers(0, 255, (30, 16, 16, 3), dtype=np.uint8))
    return paths


def test_the_evaluator_prints_the_originals_lines(images, monkeypatch, capsys) -> None:
    from evaluations import evaluator

    monkeypatch.setattr(evaluator, "open_inception", lambda device: Features())
    monkeypatch.setattr(sys, "argv", ["evaluator", *map(str, images)])
    evaluator.main()
    lines = capsys.readouterr().out.splitlines()
    found = dict(line.split(": ") for line in lines[-5:])
    assert list(found) == ["Inception Score", "FID", "sFID", "Precision", "Recall"]
    sets = [feature_metrics.read_features(path, Features()) for path in images]
    assert float(found["FID"]) == pytest.approx(feature_metrics.compare(sets[1], sets[0])["fid"])


def test_statistics_and_scores(images) -> None:
    from evaluations.th_evaluator import FIDAndIS

    fid_is = FIDAndIS(inception=Features())
    fid_is.set_ref_batch(str(images[0]))
    reference, spatial, clip = fid_is.get_ref_batch(str(images[0]))
    assert spatial is not None and clip is None
    batch = np.load(images[1])["arr_0"]
    x = torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 127.5 - 1
    features, _, _, _, pixels = fid_is.get_preds(x)
    assert np.abs(pixels.astype(int) - batch).max() <= 1  # rounded down
    sets = [feature_metrics.read_features(path, Features()) for path in images]
    distance = reference.frechet_distance(fid_is.get_statistics(features.numpy(), -1))
    assert distance == pytest.approx(feature_metrics.compare(sets[1], sets[0])["fid"], rel=1e-4)
    score = fid_is.get_inception_score(features.numpy())
    assert score == pytest.approx(feature_metrics.inception_score(sets[1].probabilities), rel=1e-4)
    with pytest.raises(UserError, match="Captions need CLIP"):
        fid_is.get_preds(x, captions=["a"])


def test_the_search_finds_the_best_time_step(images, tiny_pt, ranks, monkeypatch, capsys) -> None:
    import ternary_search
    from evaluations.th_evaluator import FIDAndIS

    monkeypatch.setattr(ternary_search, "FIDAndIS", lambda: FIDAndIS(inception=Features()))
    settings = {"model_path": tiny_pt, "ref_batch": images[0], "num_samples": 6, "batch_size": 3}
    words = flags(**settings, steps=6, begin=0, end=5)
    monkeypatch.setattr(sys, "argv", ["ternary_search", *words])
    ternary_search.main()
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[2]: float(line.split()[4].rstrip(",")) for line in lines if line.startswith("fid at")}
    best = next(line.split(": ")[1] for line in lines if line.startswith("ternary_search_results"))
    assert found[best] == min(found.values()) and set(found) <= {"1", "2", "3", "4"}


def test_mistakes_are_one_sentence(tiny_pt, monkeypatch) -> None:
    import ternary_search
    from evaluations import th_evaluator

    monkeypatch.setattr(th_evaluator, "find", lambda: None)
    with pytest.raises(UserError, match="run `genwright pull inception` once"):
        th_evaluator.open_inception(torch.device("cpu"))
    for words, sentence in (
        (flags(begin=0, end=1), "There must be room for a time step between --begin 0 and --end 1"),
        (flags(begin=0, end=5), "A search needs --ref_batch FILE"),
    ):
        monkeypatch.setattr(sys, "argv", ["ternary_search", *words])
        with pytest.raises(UserError, match=sentence):
            ternary_search.main()
