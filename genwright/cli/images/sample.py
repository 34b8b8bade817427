"""`genwright images sample`."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.arguments import one_of
from genwright.cli.app import Json
from genwright.cli.flags import expand
from genwright.cli.images.flags import (
    Classes,
    Model,
    ModelFlags,
    NumRanks,
    NumSamples,
    Out,
    Png,
    Ranks,
    Seed,
    join_ranks,
    print_result,
)
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.images.model.unet_config import UNetConfig
from genwright.images.sampling.sampler_settings import SamplerSettings, sampler_settings

if TYPE_CHECKING:
    from genwright.images.sampling.output import SampleFolder
    from genwright.images.sampling.pipeline import SampleRun

TRAINING_MODES = ("edm", "progdist", "consistency", "consistency_distillation", "consistency_training")


@expand
def sample(
    flags: ModelFlags,
    settings: Annotated[dict[str, Any], SamplerSettings],
    shape: Annotated[dict[str, Any], UNetConfig],
    model: Model = "emoji",
    class_cond: Annotated[bool | None, typer.Option(help="Whether the checkpoint has ImageNet's classes.")] = None,
    training_mode: Annotated[
        str | None,
        typer.Option(help="How the model was trained: edm, progdist or consistency.", show_default="by the sampler"),
    ] = None,
    num_samples: NumSamples = 64,
    batch_size: Annotated[int | None, typer.Option(help="Images per batch; images do not depend on it.")] = None,
    seed: Seed = None,
    generator: Annotated[str, typer.Option(help="hash, or the original's determ, determ-indiv or dummy.")] = "hash",
    classes: Classes = None,
    out: Out = None,
    png: Png = False,
    num_ranks: NumRanks = 1,
    json_output: Json = False,
) -> None:
    """Sample images into an .npz file for evaluators, and a grid.png.

    The same command continues a stopped run. --ranks or torchrun uses several GPUs.
    """
    from genwright.images.model.checkpoint import describe
    from genwright.images.sampling.output import SampleFolder
    from genwright.images.sampling.pipeline import SampleRun

    if training_mode is not None:
        settings["consistency"] = one_of("--training-mode", training_mode, TRAINING_MODES).startswith("consistency")
    asked = sampler_settings(describe(model).sampler, **settings)
    folder, resumable = SampleFolder(out) if out is not None else None, generator == "hash"
    found = (folder and folder.settings()) or {}
    with join_ranks(flags.device, num_ranks) as ranks:
        seed = found.get("seed") if seed is None else seed
        if ranks.world > 1 and (seed is None or out is None):
            raise UserError("Several ranks need --seed and --out, so that they write one set of images.")
        loaded = flags.load(model, ranks.device, class_cond=class_cond, **shape)
        run = SampleRun(loaded, asked, num_samples, seed, classes, generator, ranks.rank, ranks.world)
        folder = folder or SampleFolder.fresh(Path("samples"))
        path = folder.result((num_samples, *run.shape[1:], 3))
        result: dict[str, Any] = {"samples": str(path), "grid": str(folder.grid), "seed": run.seed}
        manifest = SampleFolder.plain(_manifest(run, model, generator))
        if found == manifest and path.is_file():
            sentence = f"{path} is already complete."
        else:
            if ranks.rank == 0:
                folder.open(manifest, resumable)
            ranks.barrier()
            seconds, made = _collect(folder, run, run.batch_size(batch_size), ranks, resumable)
            ranks.barrier()
            if ranks.rank == 0:
                folder.finish(*folder.merge(num_samples), png)
            rate = made * ranks.world / seconds
            result |= {"seconds": seconds, "images_per_s": rate}
            sentence = f"{num_samples} images of seed {run.seed} in {seconds:.1f} s ({rate:.2f} images/s): "
            sentence += f"{folder.grid}, {path}"
        if ranks.rank == 0:
            print_result(sentence, result, json_output)
        ranks.barrier()


def _manifest(run: "SampleRun", model: str, generator: str) -> dict[str, Any]:
    """Everything that the images depend on."""
    from genwright.images.model.checkpoint import locate

    path, image_model = locate(model), run.model
    return asdict(run.settings) | {
        "seed": run.seed,
        "classes": run.classes,
        "generator": generator,
        "num_samples": run.num_samples,
        "model": model,
        "config": asdict(image_model.config),
        "model time": path.stat().st_mtime if path.exists() else None,
        "device": image_model.device.type,
        "dtype": image_model.dtype,
        "micro_batch": image_model.runner.micro_batch,
    }


def _collect(
    folder: "SampleFolder", run: "SampleRun", batch_size: int, ranks: Ranks, resumable: bool
) -> tuple[float, int]:
    """Sample what is missing; returns the seconds that it took and the number of images."""
    started = time.perf_counter()
    try:
        with bar("Sampling", show=ranks.rank == 0) as progress:
            made = folder.collect(run, run.num_samples, batch_size, ranks.rank, ranks.world, progress)
    except KeyboardInterrupt:
        if ranks.rank == 0 and resumable:
            done = len(folder.done())
            print(
                f"Stopped after {done} images; the same command with --out {folder.folder} continues.", file=sys.stderr
            )
        raise
    return time.perf_counter() - started, made
