"""`genwright images edit`."""

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
    labels,
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
    steps: Steps = 40,
    ts: Ts = "0,22,39",
    seed: Seed = None,
    classes: Classes = None,
    out: Out = Path("edited"),
    png: Png = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json_output: Json = False,
) -> None:
    """Paint in, colour or enlarge an image with a consistency model that was never trained to."""
    from genwright.images.editing import read_image, read_mask
    from genwright.images.output import SampleFolder
    from genwright.images.pipeline import ImageModel

    if image is None:
        raise UserError("Editing needs an image to start from: --image FILE.")
    picture, hole = read_image(image), None if mask is None else read_mask(mask)
    image_model = ImageModel(model, preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
    asked_labels = labels(classes, image_model.description.label_names)
    points = numbers(ts, "--ts")
    batch = image_model.edit(picture, task, hole, num_samples, seed=seed, classes=asked_labels, steps=steps, ts=points)
    folder = SampleFolder(out)
    folder.open({"edit": task, "image": str(image), "seed": batch.seed}, resume=False)
    path = folder.finish(batch.array, batch.labels, png)
    say(f"{num_samples} edits of seed {batch.seed}: {path}", {"samples": str(path), "seed": batch.seed}, json_output)
