"""Flags and helpers that the images commands share."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.arguments import setting
from genwright.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

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
NumRanks = Annotated[
    int,
    typer.Option(
        "--ranks",
        help="Start this many processes that share the work, each on a GPU if there are any.",
        min=1,
        max=1024,
    ),
]
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
    """This process among the ranks: its rank, their number, its device, a barrier, and their process group."""

    rank: int
    world: int
    device: str
    barrier: Callable[[], object] = lambda: None
    group: "ProcessGroup | None" = None


@contextmanager
def join_ranks(device: str, count: int) -> Iterator[Ranks]:
    """Join torchrun's ranks, or start `count` processes of this command; every rank takes a GPU."""
    import torch
    from torch.distributed import barrier

    from genwright.device import pick_device
    from genwright.parallel.layout import Layout
    from genwright.parallel.ranks import meet
    from genwright.parallel.rendezvous import Place

    place = Place.from_environment()
    world = count if place is None else place.ranks
    if count not in (1, world):
        raise UserError(f"torchrun started {world} ranks, but --ranks is {count}.")
    if world == 1:
        yield Ranks(0, 1, device)
        return
    if place is None:
        torch.set_num_threads(max(torch.get_num_threads() // world, 1))
    ranks = meet(world, "genwright", torch.get_num_threads(), sys.argv[1:])
    try:
        if ranks.rank:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every rank, and rank 0 decides
        if device in ("auto", "cuda") and torch.cuda.is_available():
            device = f"cuda:{ranks.place.local_rank % torch.cuda.device_count()}"
            torch.cuda.set_device(device)
        with nullcontext() if ranks.rank else ranks.guard():
            ranks.arrange(Layout(tp=world), pick_device(device))
            yield Ranks(ranks.rank, world, device, barrier, ranks.stage)
    except BaseException as error:
        if ranks.rank and isinstance(error, Exception):
            ranks.exit(error)
        if ranks.children is not None:
            ranks.children.end()
        raise
    finally:
        ranks.close()


def print_result(sentence: str, result: dict[str, Any], as_json: bool) -> None:
    """Print the sentence, or the result as JSON."""
    print(json.dumps(result) if as_json else sentence)
