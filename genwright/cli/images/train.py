"""`genwright images train`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli import progress
from genwright.cli.app import Json
from genwright.cli.flags import SHOW_DEFAULTS, expand
from genwright.cli.images.flags import Device, NumRanks, join_ranks, print_result
from genwright.images.model.unet_config import UNetConfig
from genwright.images.training.training_settings import RunSettings, TrainerSettings


@expand
def train(
    data: Annotated[
        Path,
        typer.Argument(
            help="An .npz (images, labels, names), an .npy, or a folder with a class per subfolder or name prefix."
        ),
    ],
    run: Annotated[dict[str, Any], RunSettings, SHOW_DEFAULTS],
    settings: Annotated[dict[str, Any], TrainerSettings, SHOW_DEFAULTS],
    shape: Annotated[dict[str, Any], UNetConfig],
    recipe: Annotated[
        str | None, typer.Option(help="Use the original's settings as defaults: imagenet64 or lsun256.")
    ] = None,
    device: Device = "auto",
    num_ranks: NumRanks = 1,
    json_output: Json = False,
) -> None:
    """Train a model of images. --ranks or torchrun uses several GPUs. The same command continues a stopped run."""
    from genwright.device import pick_device
    from genwright.images.data.dataset import read_data
    from genwright.images.training.recipes import find_recipe
    from genwright.images.training.training_run import TrainingRun

    if recipe is not None:
        defaults = find_recipe(recipe, settings.get("method", TrainerSettings.method))
        run_defaults = {name: defaults[name] for name in defaults if hasattr(RunSettings, name)}
        run = run_defaults | run
        settings = {name: defaults[name] for name in defaults.keys() - run_defaults.keys()} | settings
    trainer_settings, run_settings = TrainerSettings(**settings), RunSettings(**run)
    dataset = read_data(data, shape.pop("image_size", None))
    with join_ranks(device, num_ranks) as ranks:
        try:
            with progress.stages(show=ranks.rank == 0) as tell:
                training = TrainingRun(
                    dataset,
                    run_settings,
                    trainer_settings,
                    shape,
                    pick_device(ranks.device),
                    rank=ranks.rank,
                    world=ranks.world,
                    group=ranks.group,
                    progress=tell,
                )
                result = training()
        except KeyboardInterrupt as stopped:  # after the progress bar is gone
            if ranks.rank == 0 and str(stopped):
                print(stopped, file=sys.stderr)
            raise
    if ranks.rank == 0:
        model = run_settings.out / "model"
        figures = ", ".join(f"{name} {value:.4g}" for name, value in result.items())
        print_result(f"{model}: {figures}", {"model": str(model)} | result, json_output)
