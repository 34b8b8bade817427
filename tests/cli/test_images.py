import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from genwright.images.checkpoint import draw_weights
from genwright.images.presets import unet_config

SHAPE = {"image_size": 16, "num_channels": 32, "num_res_blocks": 1, "num_head_channels": 32}
FLAGS = [word for name, value in SHAPE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
FLAGS += ["--channel-mult", "1,2", "--attention-resolutions", "8", "--class-cond", "--resblock-updown"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = unet_config(
        None, class_cond=True, channel_mult=(1, 2), attention_resolutions=(8,), resblock_updown=True, **SHAPE
    )
    path = tmp_path_factory.mktemp("model") / "tiny.pt"
    torch.save(draw_weights(config, 0).state_dict(), path)
    return path


def run(*arguments, launcher=(sys.executable,)):
    command = [*launcher, "-m", "genwright", "images", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def test_sample_is_the_bare_command_and_knows_when_it_is_done(model, tmp_path):
    arguments = [model, *FLAGS, "-n", 5, "--sampler", "multistep", "--ts", "0,22,39", "--seed", 7, "--out", tmp_path]
    first = run(*arguments, "--classes", "3,900", "--json")
    assert first.returncode == 0, first.stderr
    with np.load(json.loads(first.stdout)["samples"]) as file:
        assert file["arr_0"].shape == (5, 16, 16, 3) and file["arr_0"].dtype == np.uint8
        assert file["arr_1"].tolist() == [3, 900, 3, 900, 3]
    assert "already complete" in run("sample", *arguments, "--classes", "3,900").stdout


def test_two_ranks_write_the_bytes_of_one(model, tmp_path):
    arguments = ["sample", model, *FLAGS, "-n", 18, "--sampler", "onestep", "--seed", 7]
    alone = run(*arguments, "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    both = run(*arguments, "--batch-size", 5, "--out", tmp_path / "both", launcher=launcher)
    assert both.returncode == 0, both.stderr
    files = [tmp_path / name / "samples_18x16x16x3.npz" for name in ("alone", "both")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_metrics(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "features.npz", features=rng.normal(size=(20, 4)))
    result = run("metrics", tmp_path / "features.npz", tmp_path / "features.npz", "--json")
    assert json.loads(result.stdout) == pytest.approx({"fid": 0, "precision": 1, "recall": 1}, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name a MODEL"),
        (["missing.pt", "--preset", "imagenet64"], "no checkpoint file missing.pt"),
        (["random:imagenet64", "--sampler", "magic"], "no sampler 'magic'"),
        (["random:imagenet64", "--sampler", "multistep", "--ts", "0,x"], "whole numbers joined by commas"),
        (["random:imagenet64", "--training-mode", "ddpm"], "no training mode 'ddpm'"),
        (["metrics", "a.npz", "b.npz"], "no file a.npz"),
        (["search", "random:imagenet64", "--begin", "0", "--end", "1"], "no room for a point"),
        (["edit", "random:imagenet64"], "needs an image"),
    ],
)
def test_mistakes_are_one_sentence(arguments, words, tmp_path, monkeypatch, capsys):
    from genwright import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["genwright", "images", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capsys.readouterr().err
    assert ended.value.code == 1
    assert words in error and error.count("\n") == 1 and "Traceback" not in error
