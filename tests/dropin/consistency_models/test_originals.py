"""The original's own scripts, unmodified, on our modules: images and losses are those on its own modules."""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from dropin.consistency_models.tiny import HERE, dropin, flags, run
from images.piq_stub import vgg16

from genwright.images.metrics.lpips import WIDTHS

TRAIN = {"global_batch_size": 4, "lr": 1e-3, "log_interval": 1, "ema_rate": "0.9,0.99", "total_training_steps": 3}
CM = {**TRAIN, "start_ema": 0.95, "lr_anneal_steps": 3, "weight_schedule": "uniform", "start_scales": 10}


def both(original: Path, script: str, words: list[str], tmp_path: Path, norm: str = "l2", ranks: int = 1) -> list[Path]:
    """Run a script on our modules and on its own; the folders of what they wrote."""
    path = original / "scripts" / f"{script}.py"
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    # Only a seeded script can be compared; sampling with a seed needs no other.
    direct = script == "image_sample"
    dropin("--script", *([path] if direct else [HERE / "seeded.py", path]), *words, log=ours, ranks=ranks)
    run(HERE / "original_on_cpu.py", original, norm, path, *words, log=theirs, ranks=ranks)
    return [ours, theirs]


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        ({"sampler": "heun", "s_churn": 2}, 1),
        ({"sampler": "multistep", "ts": "0,2,3", "training_mode": "consistency_distillation"}, 2),
        ({"sampler": "onestep", "training_mode": "consistency_training", "use_fp16": "True"}, 1),
    ],
)
def test_image_sample(original, tiny_pt, tmp_path, settings, ranks) -> None:
    words = flags(model_path=tiny_pt, batch_size=2, num_samples=6, steps=4, **settings)
    ours, theirs = (
        np.load(path / "samples_6x16x16x3.npz")["arr_0"].astype(int)
        for path in both(original, "image_sample", words, tmp_path, ranks=ranks)
    )
    assert np.abs(ours - theirs).max() <= 1 + 2 * ("use_fp16" in settings)
    assert (ours != theirs).mean() < (0.1 if "use_fp16" in settings else 0.005)


def check_training(ours: Path, theirs: Path, rtol: float = 1e-5) -> None:
    """Losses, weights, averages and the optimizer's state."""
    rows = [list(csv.DictReader((path / "progress.csv").open())) for path in (ours, theirs)]
    assert len(rows[0]) == len(rows[1]) >= 3
    for our_row, their_row in zip(*rows, strict=True):
        assert our_row.keys() == their_row.keys()
        for key, value in their_row.items():
            assert our_row[key] == value == "" or float(our_row[key]) == pytest.approx(float(value), rel=rtol), key
    names = {path.name for path in theirs.glob("*.pt")}
    assert names == {path.name for path in ours.glob("*.pt")}
    for name in names:
        our_state, their_state = (torch.load(path / name, weights_only=True) for path in (ours, theirs))
        if name.startswith("opt"):
            our_state, their_state = (state["state"] for state in (our_state, their_state))
            assert our_state.keys() == their_state.keys()
            our_state, their_state = ({i: s["exp_avg"] for i, s in x.items()} for x in (our_state, their_state))
        assert our_state.keys() == their_state.keys()
        for key, tensor in their_state.items():
            torch.testing.assert_close(our_state[key].float(), tensor.detach().float(), rtol=rtol, atol=10 * rtol)


def test_edm_train(original, data_dir, tmp_path) -> None:
    words = flags(data_dir=data_dir, **TRAIN, lr_anneal_steps=4, microbatch=2, class_cond="True", weight_decay=0.01)
    words = [word for word in words if word not in ("--total_training_steps", "3")]
    check_training(*both(original, "edm_train", [*words, "--schedule_sampler", "lognormal"], tmp_path))


@pytest.mark.parametrize(
    ("settings", "rtol"),
    [
        ({"training_mode": "consistency_distillation", "loss_norm": "l2"}, 1e-4),
        ({"training_mode": "consistency_distillation", "loss_norm": "l2-32", "use_fp16": "True"}, 3e-3),
        (
            {
                "training_mode": "consistency_training",
                "loss_norm": "l1",
                "target_ema_mode": "adaptive",
                "scale_mode": "progressive",
                "end_scales": 30,
                "schedule_sampler": "lognormal",
            },
            1e-4,
        ),
    ],
)
def test_cm_train(original, data_dir, tiny_pt, tmp_path, settings, rtol) -> None:
    words = flags(data_dir=data_dir, teacher_model_path=tiny_pt, **CM, **settings)
    check_training(*both(original, "cm_train", words, tmp_path, settings["loss_norm"]), rtol)


def test_cm_train_with_lpips(original, data_dir, tiny_pt, tmp_path) -> None:
    """The weights are where torchvision and piq keep them; the original's own VGG is the stub's, which has the same."""
    if find_spec("piq") is None:
        pytest.skip("piq is not installed")
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(vgg16().state_dict(), folder / "vgg16-397923af.pth")
    heads = [torch.rand(1, width, 1, 1, generator=torch.Generator().manual_seed(width)) for width in WIDTHS]
    torch.save(heads, folder / "lpips_weights.pt")
    settings = CM | {"global_batch_size": 1, "start_scales": 4}
    words = flags(data_dir=data_dir, teacher_model_path=tiny_pt, **settings)  # lpips is the default
    check_training(*both(original, "cm_train", words, tmp_path, "lpips"), 1e-4)
