"""The training scripts and loops: every flag's effect, files, resuming, and progressive distillation."""

import csv
import sys
from pathlib import Path

import pytest
import torch
from dropin.consistency_models.tiny import flags

from genwright.errors import UserError

BASE = {"batch_size": 2, "log_interval": 1, "lr": 1e-3, "weight_schedule": "uniform"}
EDM = {**BASE, "schedule_sampler": "lognormal", "lr_anneal_steps": 2}
CM = {**BASE, "loss_norm": "l2", "total_training_steps": 2, "start_ema": 0.9, "start_scales": 4}


def train(script: str, log: Path, monkeypatch: pytest.MonkeyPatch, **values: object) -> list[dict[str, str]]:
    """Train in this process; the rows of progress.csv."""
    torch.manual_seed(0)
    monkeypatch.setattr(sys, "argv", [script, *flags(**values)])
    __import__(script).main()
    return list(csv.DictReader((log / "progress.csv").open()))


def state(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def test_edm_train_and_its_flags(data_dir, ranks, monkeypatch) -> None:
    rows = train("edm_train", ranks, monkeypatch, data_dir=data_dir, **EDM)
    assert [row["step"] for row in rows] == ["1", "2"]
    assert [row["samples"] for row in rows] == ["4", "6"]
    assert {path.name for path in ranks.glob("*.pt")} == {"model000002.pt", "ema_0.9999_000002.pt", "opt000002.pt"}
    first = state(ranks / "model000002.pt")["out.2.weight"]
    assert first.abs().max() > 0
    for change in ({"lr": 1e-2}, {"weight_decay": 0.9}, {"microbatch": 1}):
        train("edm_train", ranks, monkeypatch, data_dir=data_dir, **EDM | change)
        assert not torch.equal(state(ranks / "model000002.pt")["out.2.weight"], first), change


def test_files_rows_and_batches_follow_their_flags(data_dir, ranks, monkeypatch) -> None:
    flags_of_files = {"log_interval": 2, "save_interval": 2, "ema_rate": "0.5,0.9", "lr_anneal_steps": 5}
    batches = {"batch_size": -1, "global_batch_size": 3, "class_cond": "True"}
    rows = train("edm_train", ranks, monkeypatch, data_dir=data_dir, **EDM | flags_of_files | batches)
    assert [(row["step"], row["samples"]) for row in rows] == [("2", "9"), ("4", "15")]
    kinds = ("model", "ema_0.5_", "ema_0.9_", "opt")
    assert {path.name for path in ranks.glob("*.pt")} == {f"{kind}{n:06d}.pt" for kind in kinds for n in (2, 4, 5)}
    slow, fast, last = (state(ranks / f"{kind}000005.pt")["out.2.bias"] for kind in ("ema_0.9_", "ema_0.5_", "model"))
    assert (slow - last).norm() > (fast - last).norm() > 0


def test_training_has_no_end_but_the_one_it_is_given(data_dir, ranks, monkeypatch) -> None:
    monkeypatch.setenv("DIFFUSION_TRAINING_TEST", "1")  # the original's: stop after the first checkpoint
    endless = EDM | {"lr_anneal_steps": 0, "save_interval": 3, "schedule_sampler": "lognormal"}
    rows = train("edm_train", ranks, monkeypatch, data_dir=data_dir, **endless)
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert (ranks / "model000003.pt").is_file()


def test_fp16_scales_the_loss(data_dir, ranks, monkeypatch) -> None:
    rows = train("edm_train", ranks, monkeypatch, data_dir=data_dir, **EDM, use_fp16="True", fp16_scale_growth=0.5)
    scales = [float(row["lg_loss_scale"]) for row in rows if row["step"] != "0"]
    assert scales[-1] == scales[0] + 0.5
    weights = state(ranks / "model000002.pt")
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    optimizer = torch.load(ranks / "opt000002.pt", weights_only=True)["state"]
    flat = sum(tensor.numel() for tensor in weights.values() if tensor.ndim <= 1)
    assert [tuple(optimizer[i]["exp_avg"].shape[:1]) for i in range(2)] == [(flat,), (1,)]


def test_cm_train_and_its_flags(data_dir, tiny_pt, ranks, monkeypatch) -> None:
    common = {"data_dir": data_dir, "teacher_model_path": tiny_pt}
    rows = train("cm_train", ranks, monkeypatch, **common, **CM)
    assert [row["step"] for row in rows] == ["1", "2"]  # total_training_steps end it
    names = {"model000002.pt", "target_model000002.pt", "ema_0.9999_000002.pt", "opt000002.pt"}
    assert {path.name for path in ranks.glob("*.pt")} == names
    teacher, last, target = (
        state(path) for path in (tiny_pt, ranks / "model000002.pt", ranks / "target_model000002.pt")
    )
    # The target's average: from the teacher's weights, 0.9 of the rest remains after each step.
    moved = (target["out.2.bias"] - teacher["out.2.bias"]).norm() / (last["out.2.bias"] - teacher["out.2.bias"]).norm()
    assert 0.1 < moved < 0.2
    losses = {rows[0]["loss"]}
    changes: list[dict[str, object]] = [
        {"loss_norm": "l1"},
        {"training_mode": "consistency_training"},
        {"start_scales": 8},
        {"scale_mode": "progressive", "end_scales": 40},
        {"weight_schedule": "karras"},
        {"sigma_max": 20},
    ]
    for change in changes:
        rows = train("cm_train", ranks, monkeypatch, **common, **CM | change)
        losses.add(rows[-1 if "scale_mode" in change else 0]["loss"])
    assert len(losses) == len(changes) + 1


@pytest.mark.parametrize("name", ["model000002.pt", "published.pt"])
def test_cm_train_resumes_with_its_target(name, data_dir, tiny_pt, ranks, monkeypatch, capsys) -> None:
    """Beside a numbered checkpoint is its target; another name is where model and target begin."""
    common = {"data_dir": data_dir, "teacher_model_path": tiny_pt, **CM}
    train("cm_train", ranks, monkeypatch, **common)
    (ranks / "model000002.pt").rename(ranks / name)
    capsys.readouterr()
    again = {"resume_checkpoint": ranks / name, "total_training_steps": 3, "lr": 1e-9}
    rows = train("cm_train", ranks, monkeypatch, **common | again)
    numbered = name == "model000002.pt"
    assert [row["step"] for row in rows] == (["3"] if numbered else ["1", "2", "3"])
    assert ("target_model000002.pt..." in capsys.readouterr().out) == numbered
    start = state(ranks / ("target_model000002.pt" if numbered else name))
    expected = 0.9 * start["out.2.bias"] + 0.1 * state(ranks / name)["out.2.bias"]  # the model hardly moves
    torch.testing.assert_close(state(ranks / "target_model000003.pt")["out.2.bias"], expected, rtol=1e-4, atol=1e-6)


def test_progressive_distillation_halves_its_steps(data_dir, tiny_pt, ranks, monkeypatch) -> None:
    """The original's own loop passes names to its loss that this does not have."""
    stages = {"training_mode": "progdist", "scale_mode": "progdist", "distill_steps_per_iter": 1, "lr_anneal_steps": 1}
    values = CM | stages | {"total_training_steps": 5, "save_interval": 1, "ema_rate": "0.5"}
    train("cm_train", ranks, monkeypatch, data_dir=data_dir, teacher_model_path=tiny_pt, **values)
    teachers = [state(ranks / f"teacher_model{n:06d}.pt")["out.2.bias"] for n in range(1, 6)]
    students = [state(ranks / f"model{n:06d}.pt")["out.2.bias"] for n in range(1, 6)]
    # Four steps of sampling become two after the first training step, and one after two more.
    assert torch.equal(teachers[0], state(tiny_pt)["out.2.bias"])
    assert torch.equal(teachers[1], students[1]) and torch.equal(teachers[2], teachers[1])
    assert torch.equal(teachers[3], students[3])


def batches(count: int):
    draw = torch.Generator().manual_seed(1)
    return [(torch.rand(2, 3, 16, 16, generator=draw) * 2 - 1, {}) for _ in range(count)]


def new_loop(steps: int, data, resume: str = "", fp16: bool = False):
    from dropin.consistency_models.tiny import parsed

    from cm.resample import LogNormalSampler
    from cm.script_util import args_to_dict, create_model_and_diffusion, model_and_diffusion_defaults
    from cm.train_util import TrainLoop

    args = parsed("edm_train")
    torch.manual_seed(0)
    model, diffusion = create_model_and_diffusion(**args_to_dict(args, model_and_diffusion_defaults()))
    settings = {"batch_size": 2, "microbatch": -1, "lr": 1e-3, "ema_rate": 0.9, "log_interval": 1, "save_interval": 2}
    return TrainLoop(
        model=model, diffusion=diffusion, data=iter(data), schedule_sampler=LogNormalSampler(), use_fp16=fp16,
        resume_checkpoint=resume, lr_anneal_steps=steps, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("fp16", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(ranks, fp16) -> None:
    data = batches(4)
    whole, states = new_loop(4, data, fp16=fp16), []
    whole.mp_trainer.lg_loss_scale = 10.0  # overflows nothing
    for batch, cond in data:
        states.append(torch.get_rng_state())
        whole.run_step(batch, cond)
        if whole.step == 2:
            whole.save()
            scale = whole.mp_trainer.lg_loss_scale  # is not in the files
    resumed = new_loop(4, data[2:], str(ranks / "model000002.pt"), fp16)
    resumed.mp_trainer.lg_loss_scale = scale
    torch.set_rng_state(states[2])
    resumed.run_loop()
    assert (resumed.step, resumed.global_step) == (4, 4)  # counted once, where the original counts resumed steps twice
    torch.testing.assert_close(resumed.mp_trainer.float_params(), whole.mp_trainer.float_params(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(resumed.ema_params, whole.ema_params, rtol=1e-5, atol=1e-6)
    assert (ranks / "model000004.pt").is_file()


def test_names_of_checkpoints() -> None:
    from cm.train_util import parse_resume_step_from_filename

    for name, step in (("a/model000012.pt", 12), ("my_model/ema.pt", 0), ("cd_bedroom256.pt", 0), ("model.pt", 0)):
        assert parse_resume_step_from_filename(name) == step


def test_mistakes_are_one_sentence(data_dir, tiny_pt, ranks, monkeypatch) -> None:
    edm, cm = {"data_dir": data_dir, **EDM}, {"data_dir": data_dir, **CM}
    monkeypatch.setenv("TORCH_HOME", str(ranks))
    for script, values, words in (
        ("edm_train", edm | {"schedule_sampler": "uniform"}, "choose --schedule_sampler lognormal"),
        ("edm_train", edm | {"schedule_sampler": "loss"}, "There is no schedule sampler 'loss'"),
        ("edm_train", edm | {"data_dir": ""}, "--data_dir must be a folder of images, not ''"),
        ("edm_train", edm | {"batch_size": 13}, "has 12 images, fewer than a batch of 13"),
        ("cm_train", cm, "consistency_distillation needs a teacher: --teacher_model_path FILE"),
        ("cm_train", cm | {"training_mode": "cd"}, "--training_mode must be"),
        (
            "cm_train",
            cm | {"target_ema_mode": "adaptive"},
            "--target_ema_mode adaptive and --scale_mode fixed do not go",
        ),
        ("cm_train", cm | {"loss_norm": "l3"}, "loss_norm must be"),
        (
            "cm_train",
            cm | {"loss_norm": "lpips", "training_mode": "consistency_training"},
            "lpips needs vgg16-397923af.pth and lpips_weights.pt in",
        ),
    ):
        with pytest.raises(UserError, match=words):
            train(script, ranks, monkeypatch, **values)
