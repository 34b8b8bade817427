"""Every command of docs/images.md, run in its order in one folder; the files that a user brings are small ones."""

import re
import shlex
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
from genwright.images.model.unet import UNetConfig

DOCS = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
SHAPE = {"image_size": 16, "num_channels": 32, "num_res_blocks": 1, "channel_mult": (1, 2), "num_head_channels": 32}
SHAPE |= {"attention_resolutions": (8,)}
PRESETS = {"imagenet64": UNetConfig(**SHAPE, num_classes=1000), "bedroom256": UNetConfig(**SHAPE)}
# What makes the commands of the page small: fewer, smaller images and less training.
SMALLER = [(r"-n \d+", "-n 4"), ("samples_50000x64x64x3", "samples_4x16x16x3"), ("--image-size 64", "--image-size 8")]
SMALLER += [
    (r" --ranks \d+", ""),
    (" --compile", ""),
    (r"--batch-size \d+", ""),
    (r"--start-scales \d+", "--start-scales 2"),
]
TRAINING = "--steps 2 --batch-size 2 --num-channels 32 --num-res-blocks 1 --channel-mult 1 --attention-resolutions 8"
TRAINING += " --hold-out 0 --pairs 2 --device cpu"


def commands():
    blocks = re.findall(r"```\n(genwright .*?)```", DOCS, re.S)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", "").splitlines()]
    for line in lines:
        line = re.sub(r"^torchrun .* -m genwright", "genwright", line)  # test_images.py has several ranks
        for pattern, less in SMALLER:
            line = re.sub(pattern, less, line)
        yield shlex.split(line, comments=True)


def few_features(network, images):
    features = images.reshape(len(images), -1)[:, :8] / 255
    return [features, features, features / features.sum(axis=1, keepdims=True)]


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """The files that the page's user brings, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("genwright.images.training.training_run.GRID", 4)
    for name, config in PRESETS.items():
        monkeypatch.setitem(presets.PRESETS, name, config)
        for file in (f"edm_{name}_ema.pt", f"cd_{name}_lpips.pt", f"ct_{name}.pt"):
            torch.save(draw_weights(config, 0).state_dict(), file)
    # 2048 features of each image would take most of the test's time.
    monkeypatch.setattr(inception.Inception, "_batch", few_features)
    state = {name: torch.zeros(shape) for name, shape in inception.shapes().items()}
    torch.save(state, "pt_inception-2015-12-05.pth")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    for name in ("VIRTUAL_imagenet64.npz", "ref.npz"):
        np.savez(name, pixels)
    Image.fromarray(pixels[0]).save("room.png")
    Image.fromarray(pixels[0, :, :, 0]).save("hole.png")
    Path("photos").mkdir()
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(f"photos/{'ab'[i % 2]}_{i}.png")
    return tmp_path


def test_the_commands_of_the_page(brought, monkeypatch, capsys):
    found = list(commands())
    assert len(found) >= 14 and all(words[:2] == ["genwright", "images"] for words in found)
    for words in found:
        more = TRAINING.split() if words[2:3] == ["train"] else ["--num-samples", "4"]
        if words[2:3] == ["metrics"]:
            more = []
        monkeypatch.setattr(sys, "argv", [*words, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        out, error = capsys.readouterr()
        assert not ended.value.code, (words, error)
        for path in re.findall(r"\S+\.(?:png|npz)", out):
            assert Path(path.rstrip(",:")).is_file()
    assert sorted(path.name for path in Path("samples").iterdir()) == ["0001", "0002"]


def test_the_python_of_the_page(brought):
    (code,) = re.findall(r"```python\n(.*?)```", DOCS, re.S)
    names: dict = {}
    exec(code.replace("sample(64", "sample(4"), names)
    assert names["batch"].array.shape == (4, 16, 16, 3) and names["batch"].seed == 7
