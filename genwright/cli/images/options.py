"""What the images commands share: option types, numbers by commas, ranks, and how a result is told."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.errors import UserError

Model = Annotated[
    str,
    typer.Argument(help="emoji, what train wrote, a checkpoint file (.pt, .safetensors) or random:PRESET[,seed=N]."),
]
Preset = Annotated[str | None, typer.Option(help="The checkpoint's shape: imagenet64, bedroom256 or cat256.")]
ImageSize = Annotated[int | None, typer.Option(help="Pixels a side; with the flags below, a shape of no preset.")]
Flag = Annotated[int | None, typer.Option(help="As the original's flag.")]
TextFlag = Annotated[str | None, typer.Option(help="As the original's flag: numbers, by commas.")]
Switch = Annotated[bool | None, typer.Option(help="As the original's flag.")]
NumSamples = Annotated[int, typer.Option("--num-samples", "-n", help="How many images.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per batch; changes no image.")]
MicroBatch = Annotated[int | None, typer.Option(help="Images per evaluation of the UNet; sets the memory it takes.")]
Seed = Annotated[int | None, typer.Option(help="Image i comes from the seed and i alone; drawn if not given.")]
Classes = Annotated[str | None, typer.Option(help="Class labels or names, by commas, in turn; drawn if not given.")]
Steps = Annotated[int | None, typer.Option(help="Steps, or the levels that ts counts in.")]
Ts = Annotated[str | None, typer.Option(help="Multistep points, such as 0,22,39 for 40 steps.")]
Out = Annotated[
    Path | None, typer.Option(help="The folder for the results.", show_default="a new one, such as samples/0001")
]
Png = Annotated[bool, typer.Option("--png", help="Also write every image as a PNG file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
InceptionFile = Annotated[
    Path | None,
    typer.Option(help="Inception's weights, pytorch-fid's or NVIDIA's; else what `pull inception` fetched."),
]


def numbers(text: str | None, flag: str) -> tuple[int, ...] | None:
    """What `text` lists, by commas."""
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise UserError(f"{flag} takes whole numbers joined by commas, not {text!r}.") from error


def decimals(text: str | None, flag: str) -> tuple[float, ...] | None:
    """What `text` lists, by commas; fractions too."""
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise UserError(f"{flag} takes numbers joined by commas, not {text!r}.") from error


@contextmanager
def ranks(device: str, backend: str = "gloo") -> Iterator[tuple[int, int, str, Callable[[], object]]]:
    """This process's rank, the number of ranks, its device and a barrier, as torchrun tells; each takes a GPU."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1, device, lambda: None
        return
    import torch
    from torch import distributed

    distributed.init_process_group(backend)
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    try:
        yield distributed.get_rank(), world, device, distributed.barrier
    finally:
        distributed.destroy_process_group()


def say(sentence: str, result: dict[str, Any], as_json: bool) -> None:
    """Print the result, for a person or a program."""
    print(json.dumps(result) if as_json else sentence)
