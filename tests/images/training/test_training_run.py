"""A training run's grids of samples; tests/cli/test_images_train.py has its other files."""

import numpy as np
import pytest
import torch

from genwright.images.data.dataset import ImageDataset
from genwright.images.training import training_run
from genwright.images.training.training_run import TrainingRun
from genwright.images.training.training_settings import RunSettings, TrainerSettings

SHAPE = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": (1,), "num_heads": 1, "attention_resolutions": ()}


@pytest.mark.parametrize(("method", "grids"), [("edm", 1), ("consistency", 2)])
def test_a_grid_has_no_more_images_than_training_has_drawn(method, grids, tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "GRID", 5)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    data = ImageDataset(pixels, None, (), np.arange(12).astype(str))
    told = []
    run = TrainingRun(
        data,
        RunSettings(out=tmp_path, grid_every=1),
        TrainerSettings(method=method, steps=3, batch_size=2),
        SHAPE,
        torch.device("cpu"),
        progress=lambda *call: told.append(call),
    )
    run()
    totals = [total for what, done, total in told if what == "the grid's images" and done == 0]
    assert totals == [2] * grids + [4] * grids + [5] * grids * 2
    assert [(done, total) for what, done, total in told if what == "steps"] == [(1, 3), (2, 3), (3, 3)]
    assert len(list(tmp_path.glob("step_*.png"))) == 3 * grids and (tmp_path / "grid.png").is_file()
