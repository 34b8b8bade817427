"""Flags and helpers that the images commands share."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.arguments import setting

if TYPE_CHECKING:
    from genwright.images.sampling.pipeline import ImageModel

Model = Annotated[
    str,
    typer.Argument(help="emoji, a folder that train wrote, a .pt or .safetensors file, or random:PRESET[,seed=N]."),
]
NumSamples = Annotated[int, typer.Option("--num-samples", "-n", help="Number of images.")]
Seed = Annotated[int | None, typer.Option(help="Image i depends on the seed and i only; drawn if not given.")]
Classes = Annotated[
    str | None, typer.Option(help="Class labels or names, joined by commas, used in turn; drawn if not given.")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the results.", show_default="a new one, such as samples/0001")
]
Png = Annotated[bool, typer.Option("--png", help="Also write every image as a PNG file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
InceptionFile = Annotated[
    Path | None,
    typer.Option(help="Weights of Inception, from pytorch-fid or NVIDIA.", show_default="those of `pull inception`"),
]


@dataclass(frozen=True)
class ModelFlags:
    """How a model is loaded."""

    preset: str | None = setting(None, "Shape of the checkpoint: imagenet64, bedroom256 or cat256.")
    micro_batch: int | None = setting(None, "Images per evaluation of the UNet; decides how much memory is used.")
    device: str = setting("auto", "auto, cpu or cuda.")
    dtype: str = setting("auto", "auto, float32, float16 or bfloat16.")

    def load(self, model: str, device: str | None = None, **shape: Any) -> "ImageModel":
        """The model, with a shape of the preset and of those fields of UNetConfig that are given."""
        from genwright.images.model.presets import unet_config
        from genwright.images.sampling.pipeline import ImageModel

        config = unet_config(self.preset, **shape)
        return ImageModel(
            model, config=config, device=device or self.device, dtype=self.dtype, micro_batch=self.micro_batch
        )


@dataclass(frozen=True)
class Ranks:
    """This process among those of torchrun: its rank, their number, its device, and a barrier."""

    rank: int
    world: int
    device: str
    barrier: Callable[[], object] = lambda: None


@contextmanager
def join_ranks(device: str, backend: str = "gloo") -> Iterator[Ranks]:
    """Join the process group of torchrun, if there is one; every rank takes a GPU."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(0, 1, device)
        return
    import torch
    from torch import distributed

    distributed.init_process_group(backend)
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    try:
        yield Ranks(distributed.get_rank(), world, device, distributed.barrier)
    finally:
        distributed.destroy_process_group()


def print_result(sentence: str, result: dict[str, Any], as_json: bool) -> None:
    """Print the sentence, or the result as JSON."""
    print(json.dumps(result) if as_json else sentence)
