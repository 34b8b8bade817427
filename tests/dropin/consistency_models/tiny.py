"""A tiny UNet, as flags and as a checkpoint, and the drop-in's commands in processes of their own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from images.tiny_unet import TINY

from genwright.images.model.checkpoint import draw_weights

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
CONFIG = replace(TINY, num_classes=None)
SHAPE = {
    "image_size": "16",
    "num_channels": "32",
    "num_res_blocks": "1",
    "channel_mult": "1,2",
    "attention_resolutions": "8",
    "num_head_channels": "32",
    "resblock_updown": "True",
}


def save_tiny(path: Path) -> Path:
    torch.save(draw_weights(CONFIG, seed=0).state_dict(), path)
    return path


def flags(**values: object) -> list[str]:
    """Values as the words of a command line; the tiny shape is among them."""
    return [word for name, value in (SHAPE | values).items() for word in (f"--{name}", str(value))]


def parsed(script: str, **values: object):
    """The arguments of a script of ours."""
    module = __import__(script)
    return module.create_argparser().parse_args(flags(**values))


def run(*arguments: str | Path, log: Path, ranks: int = 1, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A Python command in a process of its own, or in as many as torchrun starts."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OPENAI_LOGDIR": str(log)}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_HOME": str(log.parent / "torch")}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, *map(str, arguments)]
    done = subprocess.run(command, cwd=log.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def dropin(*arguments: str | Path, log: Path, ranks: int = 1, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`genwright dropin consistency_models ...`."""
    return run("-m", "genwright", "dropin", "consistency_models", *arguments, log=log, ranks=ranks, code=code)
