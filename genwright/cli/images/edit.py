"""`genwright images edit`."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli.app import Json
from genwright.cli.flags import expand
from genwright.cli.images.flags import Classes, Model, ModelFlags, NumSamples, Out, Png, Seed, print_result
from genwright.errors import UserError
from genwright.images.sampling.sampler_settings import SamplerSettings


@expand
def edit(
    flags: ModelFlags,
    settings: Annotated[dict[str, Any], SamplerSettings],
    model: Model = "emoji",
    image: Annotated[Path | None, typer.Option(help="Image file to edit.")] = None,
    task: Annotated[str, typer.Option(help="inpaint, colorize or superres.")] = "inpaint",
    mask: Annotated[Path | None, typer.Option(help="inpaint: image file, white where to paint.")] = None,
    num_samples: NumSamples = 4,
    seed: Seed = None,
    classes: Classes = None,
    out: Out = None,
    png: Png = False,
    json_output: Json = False,
) -> None:
    """Inpaint, colorize or enlarge an image with a consistency model, which needs no training for it."""
    from genwright.images.sampling.editing import read_image, read_mask
    from genwright.images.sampling.output import SampleFolder

    if image is None:
        raise UserError("Editing needs an image: --image FILE.")
    pixels, mask_pixels = read_image(image), None if mask is None else read_mask(mask)
    image_model = flags.load(model)
    folder = None if out is None else SampleFolder(out)
    if seed is None:
        seed = ((folder and folder.settings()) or {}).get("seed") or secrets.randbits(32)
    asked = {"model": model, "edit": task, "image": str(image), "mask": mask and str(mask), "seed": seed}
    asked |= {"num_samples": num_samples, "classes": classes} | SampleFolder.plain(settings)
    if folder is not None:
        folder.check(asked)
    batch = image_model.edit(pixels, task, mask_pixels, num_samples, seed=seed, classes=classes, **settings)
    folder = folder or SampleFolder.fresh(Path("edited"))
    folder.open(asked, resume=False)
    path = folder.finish(batch.array, batch.labels, png)
    result = {"samples": str(path), "grid": str(folder.grid), "seed": batch.seed}
    print_result(f"{num_samples} edits of seed {batch.seed}: {folder.grid}, {path}", result, json_output)
