"""`genwright images train`."""

import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli import progress
from genwright.cli.images.options import Device, Flag, ImageSize, Json, Switch, TextFlag, decimals, numbers, ranks, say


def train(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Argument(
            help="An .npz (images, labels, names), an .npy, or a folder, a class per subfolder or name prefix."
        ),
    ],
    method: Annotated[str, typer.Option(help="edm, consistency, distill, progdist or dmd.")] = "edm",
    out: Annotated[Path, typer.Option(help="The run's folder; a stopped run goes on there.")] = Path("training"),
    init: Annotated[str | None, typer.Option(help="A model whose weights are the start.")] = None,
    teacher: Annotated[str | None, typer.Option(help="The model that distill, progdist and dmd learn from.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The original's settings, save those that are given: imagenet64 or lsun256.")
    ] = None,
    image_size: ImageSize = None,
    num_channels: Flag = None,
    num_res_blocks: Flag = None,
    channel_mult: TextFlag = None,
    attention_resolutions: TextFlag = None,
    num_heads: Flag = None,
    num_head_channels: Flag = None,
    use_scale_shift_norm: Switch = None,
    resblock_updown: Switch = None,
    dropout: Annotated[float, typer.Option(help="The share of activations dropped.")] = 0.0,
    steps: Annotated[int, typer.Option(help="How many steps of the optimizer.")] = 10_000,
    batch_size: Annotated[int, typer.Option(help="Images per step, over all ranks.")] = 256,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per step and rank.")] = 1,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 1e-4,
    warmup: Annotated[int, typer.Option(help="Steps over which the learning rate rises.")] = 0,
    anneal: Annotated[float, typer.Option(help="The last share of steps, over which it falls to 0.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="The optimizer's.")] = 0.0,
    optimizer: Annotated[str, typer.Option(help="adamw, or the original's radam.")] = "adamw",
    beta1: Annotated[float, typer.Option(help="The decay of the optimizer's mean gradient.")] = 0.9,
    beta2: Annotated[float, typer.Option(help="The decay of its mean squared gradient.")] = 0.99,
    ema: Annotated[
        str,
        typer.Option(help="The decay of the average of weights that is the model; of several, by commas, the last."),
    ] = "0.999",
    ema_warmup: Annotated[bool, typer.Option(help="Begin with shorter averages.")] = True,
    dtype: Annotated[str, typer.Option(help="float32, or float16 or bfloat16 for mixed precision.")] = "float32",
    schedule: Annotated[str, typer.Option(help="For consistency: ect, or the original's adaptive.")] = "ect",
    first_stage: Annotated[int, typer.Option(help="ect: the stage to begin with; each halves the gaps.")] = 0,
    stages: Annotated[int, typer.Option(help="ect: how many there are.")] = 8,
    start_scales: Annotated[int | None, typer.Option(help="Noise levels at the start; progdist: steps.")] = None,
    end_scales: Annotated[int, typer.Option(help="adaptive: noise levels at the end.")] = 150,
    start_ema: Annotated[float, typer.Option(help="The target's decay (adaptive: at the start).")] = 0.95,
    pairs: Annotated[int, typer.Option(help="dmd: images of the teacher's, with their noise.")] = 8192,
    keep: Annotated[float, typer.Option(help="dmd: the weight of a sample's distance from the teacher's.")] = 0.5,
    loss_norm: Annotated[str | None, typer.Option(help="l1, l2, l2-32, pseudo-huber or lpips.")] = None,
    lpips: Annotated[
        list[Path] | None,
        typer.Option(help="Weights for lpips: torchvision's VGG-16 file, and once more, the heads of lpips or piq."),
    ] = None,
    weighting: Annotated[str | None, typer.Option(help="karras, snr, snr+1, truncated-snr or uniform.")] = None,
    p_mean: Annotated[float | None, typer.Option(help="edm, ect: the mean of ln sigma.")] = None,
    p_std: Annotated[float | None, typer.Option(help="edm, ect: its standard deviation.")] = None,
    hold_out: Annotated[float, typer.Option(help="The share of names held out to judge by; 0: none.")] = 0.1,
    balance: Annotated[float, typer.Option(help="Images are drawn by 1 / their class's count to this power.")] = 0.5,
    mirror: Annotated[str | None, typer.Option(help="Class names, by commas, to mirror at random; or all.")] = None,
    cluster_size: Annotated[
        int | None,
        typer.Option(help="Split classes into groups of so many alike images at most, and tell the model those."),
    ] = None,
    seed: Annotated[int, typer.Option(help="All that is drawn comes from it.")] = 0,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1000,
    grid_every: Annotated[int, typer.Option(help="Steps between grids of samples.")] = 1000,
    save_dtype: Annotated[str, typer.Option(help="What the model's weights are written as.")] = "float16",
    compile_unet: Annotated[bool, typer.Option("--compile", help="Compile the UNet; worth it on a GPU.")] = False,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Train a model of images. torchrun spreads it over several GPUs; a stopped run goes on when asked for again."""
    from genwright.device import pick_device
    from genwright.errors import UserError
    from genwright.images.model.presets import default_channel_mult
    from genwright.images.model.unet_config import UNetConfig
    from genwright.images.sampling.pipeline import DTYPES
    from genwright.images.training.recipes import find_recipe
    from genwright.images.training.training_run import RunSettings, TrainRun
    from genwright.images.training.training_settings import TrainerSettings

    values = context.params | {
        "ema": decimals(ema, "--ema"),
        "mirror": mirror,
        "channel_mult": decimals(channel_mult, "--channel-mult"),
        "attention_resolutions": numbers(attention_resolutions, "--attention-resolutions"),
    }
    if recipe is not None:
        for name, value in find_recipe(recipe, method).items():
            source = context.get_parameter_source(name)
            if source is not None and source.name == "DEFAULT":
                values[name] = value

    def chosen(names: Iterable[str]) -> dict[str, Any]:
        return {name: values[name] for name in names if values.get(name) is not None}

    settings = TrainerSettings(**chosen(field.name for field in fields(TrainerSettings)))
    if save_dtype not in DTYPES:
        raise UserError(f"There is no dtype {save_dtype!r}; choose one of {', '.join(DTYPES)}.")
    if not 0 <= values["hold_out"] < 1 or min(save_every, grid_every) < 1:
        raise UserError("--hold-out is a share below 1; --save-every and --grid-every are 1 or more.")
    given = chosen({field.name for field in fields(UNetConfig)} - {"image_size", "num_classes"})

    def shape(size: int, num_classes: int | None) -> UNetConfig:
        usual = {"image_size": size, "num_classes": num_classes, "channel_mult": default_channel_mult(size)}
        return UNetConfig(**usual | given)

    run = RunSettings(
        data=data,
        out=out,
        image_size=image_size,
        hold_out=values["hold_out"],
        balance=values["balance"],
        mirror=tuple(values["mirror"].split(",")) if values["mirror"] else (),
        cluster_size=cluster_size,
        init=init,
        teacher=teacher,
        lpips=tuple(lpips or ()),
        save_every=save_every,
        grid_every=grid_every,
        save_dtype=DTYPES[save_dtype],
    )
    backend = "nccl" if pick_device(device).type == "cuda" else "gloo"
    try:
        with ranks(device, backend) as (rank, world, device, _), progress.stages(show=rank == 0) as tell:
            training = TrainRun(
                run,
                settings,
                shape,
                pick_device(device),
                rank=rank,
                world=world,
                compiled=compile_unet,
                tracing=partial(tell, "the teacher's images"),
            )
            result = training(partial(tell, "steps"))
    except KeyboardInterrupt as stopped:
        if str(stopped):  # told after the bar, which clears its own lines, is gone
            print(stopped, file=sys.stderr)
        raise
    if rank == 0:
        said = ", ".join(f"{name} {value:.4g}" for name, value in result.items())
        say(f"{out / 'model'}: {said}", {"model": str(out / "model")} | result, json_output)
