import json
import os
import signal
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from genwright import cli
from genwright.images.model.checkpoint import load_unet
from genwright.images.training import losses, training_run

SHAPE = ["--num-channels", 32, "--num-res-blocks", 1, "--attention-resolutions", 8]
STEPS = ["--batch-size", 2, "--save-every", 2, "--hold-out", 0, "--device", "cpu", "--json"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs `genwright images train` on 12 images of 8 pixels; returns its exit code, output and errors."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(12) % 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_run, "GRID", 2)
    monkeypatch.setattr(training_run.TrainingRun, "save_grid", lambda self, name: None)

    def command(*arguments, data="data.npz", shape=(*SHAPE, "--channel-mult", "1")):
        monkeypatch.setattr(
            sys, "argv", ["genwright", "images", "train", data, *map(str, (*shape, *STEPS, *arguments))]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        return ended.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def at_step(monkeypatch):
    """Changes the loss of a step, numbered from 1."""

    def change(step, how):
        calls, plain = [], losses.edm

        def edm(*arguments):
            calls.append(1)
            loss = plain(*arguments)
            return how(loss) if len(calls) == step else loss

        monkeypatch.setattr(losses, "edm", edm)

    return change


def checkpoint(folder):
    return torch.load(f"{folder}/checkpoint.pt", weights_only=True)


def same(a, b):
    return all(torch.equal(a["unet"][name], b["unet"][name]) for name in a["unet"])


@pytest.mark.parametrize("mult", [[], ["--channel-mult", "1,2"]])
def test_images_of_28_pixels(run, tmp_path, mult):
    np.savez(tmp_path / "digits.npz", np.zeros((4, 28, 28, 3), np.uint8))
    code, _, error = run("--steps", 1, data="digits.npz", shape=[*SHAPE, *mult])
    assert code == 0, error


def test_a_diverging_run_stops_and_keeps_the_last_good_weights(run, at_step, tmp_path):
    at_step(5, lambda loss: loss * torch.nan)
    code, out, error = run("--steps", 20, "--out", "out")
    assert (code, out) == (1, "") and error.count("\n") == 1
    assert "diverged by step 6" in error and "out/model holds the weights of the last checkpoint" in error
    assert checkpoint("out")["step"] == 4 and not (tmp_path / "out" / "metrics.json").exists()
    assert all(tensor.isfinite().all() for tensor in load_unet("out/model").state_dict().values())
    at_step(1, lambda loss: loss * torch.nan)
    assert "There is no checkpoint yet" in run("--steps", 20, "--out", "at-once")[2]


def test_an_interrupt_saves_and_the_run_goes_on_as_if_there_were_none(run, at_step, monkeypatch):
    @contextmanager
    def stages(**_):
        try:
            yield lambda *_: None
        finally:
            print("bar cleared", file=sys.stderr)

    def interrupt(loss):
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    assert run("--steps", 5, "--out", "whole")[0] == 0
    at_step(3, interrupt)
    monkeypatch.setattr("genwright.cli.progress.stages", stages)
    code, out, error = run("--steps", 5, "--out", "out")
    assert (code, out) == (130, "") and error.startswith("bar cleared\nStopped after step 3 of 5, and saved")
    assert checkpoint("out")["step"] == 3 and load_unet("out/model")
    assert run("--steps", 5, "--out", "out")[0] == 0
    assert same(checkpoint("out"), checkpoint("whole"))


def test_a_run_that_is_stopped_at_its_grid_has_its_model_and_ends_when_asked_again(run, monkeypatch, tmp_path):
    def interrupted(training, name):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_run.TrainingRun, "save_grid", interrupted)
        code, out, error = run("--steps", 2, "--out", "out")
    assert (code, out) == (130, "") and load_unet("out/model")
    assert error.startswith("Stopped after the last step; out/model is complete, and the same command writes the grid")
    assert run("--steps", 2, "--out", "out")[0] == 0 and (tmp_path / "out" / "metrics.json").exists()


def test_a_finished_run_keeps_its_metrics(run, tmp_path):
    assert run("--steps", 2, "--out", "out")[0] == 0
    metrics = tmp_path / "out" / "metrics.json"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"seconds": 3600.0}))
    assert run("--steps", 2, "--out", "out")[0] == 0 and json.loads(metrics.read_text())["seconds"] == 3600.0
    assert run("--steps", 3, "--out", "out")[0] == 0 and json.loads(metrics.read_text())["seconds"] < 3600.0


def test_a_finished_run_can_be_made_longer(run):
    assert run("--steps", 5, "--out", "whole")[0] == 0
    assert run("--steps", 2, "--out", "out")[0] == 0
    assert json.loads(run("--steps", 5, "--out", "out")[1])["steps"] == 5
    assert same(checkpoint("out"), checkpoint("whole"))
    assert "--steps must be at least 5" in run("--steps", 4, "--out", "out")[2]


def test_a_recipe_is_the_originals_and_flags_change_it(run, monkeypatch):
    class Known(Exception):
        pass

    def known(data, run, settings, *_, **__):
        raise Known(run, settings)

    monkeypatch.setattr(training_run, "TrainingRun", known)
    recipe = ["--method", "consistency", "--recipe", "imagenet64"]
    with pytest.raises(Known) as found:
        run(*recipe, "--lr", 0.5)
    asked, settings = found.value.args
    assert (settings.optimizer, settings.beta1, settings.beta2) == ("radam", 0.9, 0.999)
    assert settings.ema == (0.999, 0.9999, 0.9999432189950708) and not settings.ema_warmup
    assert (settings.schedule, settings.end_scales, settings.norm) == ("adaptive", 200, "lpips")
    assert (asked.mirror, asked.balance) == (("all",), 0)
    assert (settings.lr, settings.batch_size) == (0.5, 2)  # given, and so not the recipe's
    with pytest.raises(Known) as found:
        run("--recipe", "lsun256")
    assert found.value.args[0].dropout == 0.1 and found.value.args[1].lr == 1e-4
    assert "recipe must be one of imagenet64, lsun256" in run("--recipe", "magic")[2]
    assert "has settings for edm, distill, consistency, not for dmd" in run("--recipe", "lsun256", "--method", "dmd")[2]


def test_every_average_is_written(run):
    code, _, error = run("--steps", 2, "--ema", "0.5,0.9", "--no-ema-warmup", "--optimizer", "radam", "--out", "out")
    assert code == 0, error
    short, long = (load_unet(f"out/{name}").state_dict() for name in ("model_ema_0.5", "model"))
    assert any(not torch.equal(short[name], long[name]) for name in short)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dropout", "2"], "dropout must be a number between 0.0 and 1.0, not 2.0."),
        (["--dropout", "nan"], "dropout must be"),
        (["--ema", "0.9,x"], "--ema must be numbers joined by commas"),
        (["--ema", "1.5"], "Every ema must be"),
        (["--optimizer", "sgd"], "optimizer must be one of adamw, radam, not 'sgd'"),
        (["--lr", "inf"], "lr must be a number between"),
    ],
)
def test_mistakes_are_one_sentence(run, flags, words):
    code, _, error = run(*flags)
    assert code == 1 and words in error and error.count("\n") == 1
