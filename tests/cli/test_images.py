import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from genwright import cli
from genwright.images.metrics import inception
from genwright.images.model import presets
from genwright.images.model.checkpoint import draw_weights
from genwright.images.sampling.pipeline import SampleRun

SHAPE = {"image_size": 16, "num_channels": 32, "num_res_blocks": 1, "num_head_channels": 32}
FLAGS = [word for name, value in SHAPE.items() for word in (f"--{name.replace('_', '-')}", value)]
FLAGS += ["--channel-mult", "1,2", "--attention-resolutions", "8", "--class-cond", "--resblock-updown"]
CONFIG = presets.unet_config(
    None, class_cond=True, channel_mult=(1, 2), attention_resolutions=(8,), resblock_updown=True, **SHAPE
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.pt"
    torch.save(draw_weights(CONFIG, 0).state_dict(), path)
    return path


@pytest.fixture
def images(tmp_path, monkeypatch, capsys):
    """Runs `genwright images` in an empty folder; returns its exit code, output and errors."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(presets.PRESETS, "tiny", CONFIG)
        monkeypatch.setattr(sys, "argv", ["genwright", "images", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        return ended.value.code, *capsys.readouterr()

    return run


def test_sample_is_the_bare_command_and_knows_when_it_is_done(images, model, tmp_path):
    arguments = [model, *FLAGS, "-n", 5, "--sampler", "multistep", "--ts", "0,22,39", "--classes", "3,900"]
    code, out, _ = images(*arguments, "--json", "--out", "out")
    assert code == 0
    result = json.loads(out)
    with np.load(tmp_path / result["samples"]) as file:
        assert file["arr_0"].shape == (5, 16, 16, 3) and file["arr_0"].dtype == np.uint8
        assert file["arr_1"].tolist() == [3, 900, 3, 900, 3]
    assert result["grid"] == "out/grid.png" and Image.open(tmp_path / "out" / "grid.png").size == (384, 256)
    # The drawn seed is the folder's, so asking again is asking for the same.
    assert "already complete" in images("sample", *arguments, "--out", "out")[1]
    code, _, error = images(*arguments, "--seed", result["seed"] + 1, "--out", "out")
    assert code == 1 and "holds samples of another run" in error


def test_runs_without_a_folder_get_one_each_and_an_interrupted_one_goes_on(images, model, tmp_path, monkeypatch):
    arguments = [model, *FLAGS, "-n", 5, "--sampler", "onestep", "--batch-size", 2]
    code, out, _ = images(*arguments)
    assert code == 0 and out.endswith("samples/0001/grid.png, samples/0001/samples_5x16x16x3.npz\n")
    sample = SampleRun.__call__

    def interrupted(run, first, count):
        if first:
            raise KeyboardInterrupt
        return sample(run, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(SampleRun, "__call__", interrupted)
        code, _, error = images(*arguments, "--seed", 7)
    assert code == 130
    assert error == "Stopped after 2 images; the same command with --out samples/0002 continues.\n"
    assert images(*arguments, "--seed", 7, "--out", "samples/0002")[0] == 0
    assert images(*arguments, "--seed", 7)[0] == 0
    files = [tmp_path / "samples" / name / "samples_5x16x16x3.npz" for name in ("0002", "0003")]
    assert files[0].read_bytes() == files[1].read_bytes()
    code, _, error = images(*arguments, "--out", files[0] / "within")
    assert code == 1 and error.endswith("cannot be written: Not a directory.\n") and error.count("\n") == 1


def test_train_then_sample(images, tmp_path, monkeypatch):
    monkeypatch.setattr("genwright.images.training.training_run.GRID", 4)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(24) % 2, label_names=["even", "odd"])
    shape = ["--num-channels", 32, "--num-res-blocks", 1, "--channel-mult", "1", "--attention-resolutions", 8]
    steps = ["--steps", 6, "--batch-size", 4, "--grid-every", 3, "--save-every", 2, "--device", "cpu", "--json"]
    arguments = ["train", "data.npz", *shape, *steps, "--hold-out", 0]
    code, out, error = images(*arguments, "--method", "edm", "--out", "edm")
    assert code == 0, error
    assert {path.name for path in (tmp_path / "edm").iterdir()} >= {"step_000003.png", "grid.png", "loss.png", "model"}
    # Asked for again, a finished run has nothing left to train.
    assert json.loads(images(*arguments, "--method", "edm", "--out", "edm")[1])["loss"] == json.loads(out)["loss"]
    code, _, error = images(*arguments, "--method", "edm", "--lr", 0.1, "--out", "edm")
    assert code == 1 and "holds another run, whose lr is 0.0001 and not 0.1" in error
    code, _, error = images(*arguments, "--method", "edm", "--num-channels", 64, "--out", "edm")
    assert code == 1 and "holds another run, whose num_channels is 32 and not 64" in error
    clusters = ["--cluster-size", 4]
    code, _, error = images(*arguments, "--method", "edm", "--init", "edm/model", *clusters, "--out", "clusters")
    assert code == 0, error
    code, _, error = images(
        *arguments, "--method", "edm", "--init", "edm/model", "--cluster-size", 2, "--out", "clusters"
    )
    assert code == 1 and "holds another run, whose cluster_size is 4 and not 2" in error
    for teacher, size in (("clusters", 2), ("edm", 4)):
        wrong = ["--teacher", f"{teacher}/model", "--cluster-size", size]
        code, _, error = images(*arguments, "--method", "dmd", *wrong, "--out", "no")
        assert code == 1 and f"{teacher}/model has other clusters than this run" in error
    of_method = {
        "consistency": ["--init", "edm/model"],
        "distill": ["--teacher", "edm/model", "--start-scales", 2],
        "progdist": ["--teacher", "edm/model", "--start-scales", 2],
        "dmd": ["--teacher", "clusters/model", *clusters, "--pairs", 4],
    }
    for method, more in of_method.items():
        code, out, error = images(*arguments, "--method", method, *more, "--out", method)
        assert code == 0, error
        code, out, error = images(
            f"{method}/model", "-n", 2, "--classes", "odd", "--out", f"{method}-samples", "--json"
        )
        assert code == 0, error
        with np.load(tmp_path / json.loads(out)["samples"]) as file:
            assert file["arr_1"].tolist() == [1, 1]


def test_two_ranks_train_as_one_that_accumulates(images, tmp_path):
    np.savez(tmp_path / "data.npz", images=np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8))
    arguments = ["train", tmp_path / "data.npz", "--num-channels", 32, "--num-res-blocks", 1, "--channel-mult", "1"]
    arguments += ["--steps", 3, "--batch-size", 4, "--hold-out", 0, "--device", "cpu", "--attention-resolutions", 8]
    arguments += ["--method", "consistency"]
    arguments = [*map(str, arguments)]
    assert images(*arguments, "--accumulate", 2, "--out", "alone")[0] == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "genwright", "images", *arguments, "--out", tmp_path / "both"]
    both = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert both.returncode == 0, both.stderr
    alone, both = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["unet"] for name in ("alone", "both")
    )
    for name in alone:
        torch.testing.assert_close(alone[name], both[name], rtol=1e-4, atol=1e-6)


def test_two_ranks_write_the_bytes_of_one(images, model, tmp_path):
    """The command starts the other rank itself; a mistake is still one sentence."""
    arguments = ["sample", str(model), *map(str, FLAGS), "-n", "18", "--sampler", "onestep", "--seed", "7"]
    arguments += ["--device", "cpu"]
    assert images(*arguments, "--out", "alone")[0] == 0
    command = [sys.executable, "-m", "genwright", "images", *arguments, "--batch-size", "5", "--ranks", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(*more: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, env=environment, timeout=300)

    both = run("--out", tmp_path / "both")
    assert both.returncode == 0 and both.stdout.startswith("18 images of seed 7"), both.stderr
    files = [tmp_path / name / "samples_18x16x16x3.npz" for name in ("alone", "both")]
    assert files[0].read_bytes() == files[1].read_bytes()
    wrong = run("--out", tmp_path / "both", "--seed", "8")
    assert wrong.returncode == 1
    assert wrong.stderr.strip().startswith("genwright: ") and wrong.stderr.count("\n") == 1


def test_edit(images, model, tmp_path):
    pixels = np.full((16, 16, 3), 90, np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(tmp_path / "mask.png")
    files = ["--image", tmp_path / "image.png", "--mask", tmp_path / "mask.png"]
    code, out, error = images(
        "edit", model, "--preset", "tiny", *files, "--classes", 7, "-n", 2, "--seed", 1, "--json", "--png"
    )
    assert code == 0, error
    edited = np.load(tmp_path / json.loads(out)["samples"])["arr_0"]
    assert np.abs(edited.astype(int) - pixels)[:, np.eye(16) == 0].max() <= 1
    assert np.array_equal(np.array(Image.open(tmp_path / "edited" / "0001" / "000001.png")), edited[1])
    again = images("edit", model, "--preset", "tiny", *files, "--classes", 7, "-n", 2, "--seed", 1, "--steps", 3)
    assert again[1] == "2 edits of seed 1: edited/0002/grid.png, edited/0002/samples_2x16x16x3.npz\n"
    named = ["edit", model, "--preset", "tiny", *files, "--classes", 7, "-n", 2, "--out", "edited/0001"]
    assert images(*named)[0] == 0  # the drawn seed is the folder's
    code, _, error = images(*named, "--seed", 2)
    assert code == 1 and "edited/0001 holds samples of another run, whose seed is 1 and not 2" in error


def test_metrics_and_search(images, model, tmp_path):
    widths = {name: (6 / np.prod(shape[1:])) ** 0.5 for name, shape in inception.shapes().items()}
    state = {name: torch.rand(shape) - 0.5 for name, shape in inception.shapes().items()}
    state = {name: x * 2 * widths[name] if x.dim() > 1 else x + 1 for name, x in state.items()}
    torch.save(state, tmp_path / "inception.pt")
    assert images(model, *FLAGS, "-n", 6, "--sampler", "onestep", "--seed", 1, "--out", "out")[0] == 0
    samples = tmp_path / "out" / "samples_6x16x16x3.npz"
    code, out, error = images("metrics", samples, samples, "--inception", "inception.pt", "--json")
    assert code == 0, error
    result = json.loads(out)
    copies = {"near_copies", "distinct", "distinct_reference"}
    assert set(result) == {"fid", "sfid", "inception_score", "kid", "precision", "recall"} | copies
    assert error.startswith("Warning: FID and sFID of 6 images are far too large")
    assert result["fid"] == pytest.approx(0, abs=1e-2) and result["precision"] == result["recall"] == 1
    measured = ["--reference", samples, "--inception", "inception.pt"]
    code, out, error = images("search", model, "--preset", "tiny", *measured, "--steps", 3, "--end", 2, "-n", 4)
    assert code == 0, error
    assert out == "The best point is 1: --ts 0,1,2\n" and error.startswith("ts 0,1,2: FID ")


def test_metrics_without_inception(images, tmp_path, monkeypatch):
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("genwright.images.metrics.judge.QUICK_STEPS", 3)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "samples.npz", pixels[:6])
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(12) % 2)
    code, out, error = images("metrics", "samples.npz", "data.npz", "--json")
    assert code == 0 and error == "No FID: it needs --inception FILE or `genwright pull inception`.\n"
    result = json.loads(out)
    assert result.keys() == {"near_copies", "distinct", "distinct_reference", "judge_frechet"}
    assert result["near_copies"] == result["distinct"] == 1
    code, _, error = images("metrics", "samples.npz", "data.npz", "--inception", "data.npz")
    assert code == 1 and "data.npz" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["emojis"], "no file or folder emojis; did you mean emoji?"),
        (["model.pt", "--attention-resolutions", "0"], "attention_resolutions must be 1 or more, not 0"),
        (["model.pt", "--channel-mult", "nan"], "finite numbers"),
        (["--classes", "Flags,Cars"], "no class 'Cars'; this model's are Activities"),
        (["missing.pt", "--preset", "imagenet64"], "no file or folder missing.pt."),
        (["random:imagenet64", "--sampler", "magic"], "sampler must be one of heun, euler"),
        (["random:imagenet64", "--sampler", "multistep", "--ts", "0,39,22"], "ts must rise"),
        (["random:imagenet64", "--sampler", "multistep", "--ts", "0,x"], "whole numbers joined by commas"),
        (["random:imagenet64", "--training-mode", "ddpm"], "--training-mode must be one of edm"),
        (["model.pt", "--image-size", "65", "--channel-mult", "1,2"], "image_size must be a multiple of 2, not 65"),
        (["random:imagenet64", "--image-size", "32", "--channel-mult", "1,2"], "has the shape of its name"),
        (["random:tiny", "--classes", "1000"], "must be a whole number between 0 and 999, not 1000"),
        (["random:tiny", "-n", "0"], "num_samples must be a whole number between 1 and"),
        (["metrics", "a.npz", "b.npz"], "no file a.npz"),
        (["search", "random:tiny", "--begin", "0", "--end", "1"], "must be room for a time step"),
        (["search", "random:tiny"], "needs --reference"),
        (["edit", "random:tiny"], "needs an image"),
    ],
)
def test_mistakes_are_one_sentence(images, arguments, words):
    code, _, error = images(*arguments)
    assert code == 1
    assert words in error and error.count("\n") == 1
