"""`genwright images edit`."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.images.options import (
    Classes,
    Device,
    Dtype,
    Json,
    MicroBatch,
    Model,
    NumSamples,
    Out,
    Png,
    Preset,
    Seed,
    Steps,
    Ts,
    numbers,
    say,
)
from genwright.errors import UserError


def edit(
    model: Model = "emoji",
    image: Annotated[Path | None, typer.Option(help="The image file to start from.")] = None,
    task: Annotated[str, typer.Option(help="inpaint, colorize or superres.")] = "inpaint",
    mask: Annotated[Path | None, typer.Option(help="For inpaint: an image file, white where to paint anew.")] = None,
    preset: Preset = None,
    num_samples: NumSamples = 4,
    micro_batch: MicroBatch = None,
    steps: Steps = None,
    ts: Ts = None,
    seed: Seed = None,
    classes: Classes = None,
    out: Out = None,
    png: Png = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json_output: Json = False,
) -> None:
    """Paint in, colour or enlarge an image with a consistency model that was never trained to."""
    from genwright.images.sampling.editing import read_image, read_mask
    from genwright.images.sampling.output import SampleFolder
    from genwright.images.sampling.pipeline import ImageModel

    if image is None:
        raise UserError("Editing needs an image to start from: --image FILE.")
    picture, hole = read_image(image), None if mask is None else read_mask(mask)
    image_model = ImageModel(model, preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
    folder = None if out is None else SampleFolder(out)
    if seed is None:
        seed = ((folder and folder.settings()) or {}).get("seed") or secrets.randbits(32)
    asked = {"model": model, "edit": task, "image": str(image), "mask": mask and str(mask), "seed": seed}
    asked |= {"num_samples": num_samples, "classes": classes, "steps": steps, "ts": ts}
    if folder is not None:
        folder.check(asked)
    batch = image_model.edit(
        picture, task, hole, num_samples, seed=seed, classes=classes, steps=steps, ts=numbers(ts, "--ts")
    )
    folder = folder or SampleFolder.fresh(Path("edited"))
    folder.open(asked, resume=False)
    path = folder.finish(batch.array, batch.labels, png)
    result = {"samples": str(path), "grid": str(folder.grid), "seed": batch.seed}
    say(f"{num_samples} edits of seed {batch.seed}: {folder.grid}, {path}", result, json_output)
