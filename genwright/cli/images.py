"""`genwright images`: sample, edit, measure, and search multistep points; bare, it samples."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli.app import new_app
from genwright.errors import UserError

commands = new_app(help="Sample images, edit them, and measure them.", no_args_is_help=False)
COMMANDS = ("sample", "edit", "search", "metrics")


def app(arguments: list[str], prog_name: str) -> None:
    """Run a subcommand; without one's name, `sample`."""
    if not arguments or arguments[0] not in (*COMMANDS, "--help", "-h"):
        arguments = ["sample", *arguments]
    commands(arguments, prog_name=prog_name)


Model = Annotated[str | None, typer.Argument(help="A checkpoint file (.pt, .safetensors) or random:PRESET[,seed=N].")]
Preset = Annotated[str | None, typer.Option(help="The checkpoint's shape: imagenet64, bedroom256 or cat256.")]
ImageSize = Annotated[int | None, typer.Option(help="Pixels a side; with the flags below, a shape of no preset.")]
Flag = Annotated[int | None, typer.Option(help="As the original's flag.")]
TextFlag = Annotated[str | None, typer.Option(help="As the original's flag: numbers, by commas.")]
Switch = Annotated[bool | None, typer.Option(help="As the original's flag.")]
NumSamples = Annotated[int, typer.Option("--num-samples", "-n", help="How many images.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per batch; changes no image.")]
MicroBatch = Annotated[int | None, typer.Option(help="Images per evaluation of the UNet; sets the memory it takes.")]
Seed = Annotated[int | None, typer.Option(help="Image i comes from the seed and i alone; drawn if not given.")]
Classes = Annotated[str | None, typer.Option(help="Class labels, by commas, in turn; drawn if not given.")]
Steps = Annotated[int, typer.Option(help="Steps, or the levels that ts counts in.")]
Ts = Annotated[str | None, typer.Option(help="Multistep points, such as 0,22,39 for 40 steps.")]
Out = Annotated[Path, typer.Option(help="The folder for the results.")]
Png = Annotated[bool, typer.Option("--png", help="Also write every image as a PNG file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
InceptionFile = Annotated[Path | None, typer.Option(help="InceptionV3 weights (pt_inception-2015-12-05).")]


@commands.command()
def sample(
    model: Model = None,
    preset: Preset = None,
    image_size: ImageSize = None,
    num_channels: Flag = None,
    num_res_blocks: Flag = None,
    channel_mult: TextFlag = None,
    attention_resolutions: TextFlag = None,
    num_heads: Flag = None,
    num_heads_upsample: Flag = None,
    num_head_channels: Flag = None,
    class_cond: Switch = None,
    use_scale_shift_norm: Switch = None,
    resblock_updown: Switch = None,
    training_mode: Annotated[
        str | None,
        typer.Option(help="How the model was trained; edm, progdist or consistency...; else by the sampler."),
    ] = None,
    num_samples: NumSamples = 64,
    batch_size: BatchSize = None,
    micro_batch: MicroBatch = None,
    sampler: Annotated[
        str, typer.Option(help="heun, euler, dpm, ancestral, dpmpp-2m, onestep, multistep or progdist.")
    ] = "heun",
    steps: Steps = 40,
    ts: Ts = None,
    schedule: Annotated[str, typer.Option(help="karras, exponential or vp.")] = "karras",
    sigma_min: Annotated[float, typer.Option(help="The lowest noise level.")] = 0.002,
    sigma_max: Annotated[float, typer.Option(help="The highest noise level.")] = 80.0,
    rho: Annotated[float, typer.Option(help="The Karras schedule's exponent.")] = 7.0,
    s_churn: Annotated[float, typer.Option(help="Noise added on the way (heun, dpm).")] = 0.0,
    s_tmin: Annotated[float, typer.Option(help="The lowest level at which it is.")] = 0.0,
    s_tmax: Annotated[float, typer.Option(help="The highest.")] = float("inf"),
    s_noise: Annotated[float, typer.Option(help="Its scale.")] = 1.0,
    clip_denoised: Annotated[bool, typer.Option(help="Keep every estimate within the range of images.")] = True,
    seed: Seed = None,
    generator: Annotated[
        str, typer.Option(help="hash, or one of the original's: determ, determ-indiv, dummy.")
    ] = "hash",
    classes: Classes = None,
    out: Out = Path("samples"),
    png: Png = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json_output: Json = False,
) -> None:
    """Sample images into an .npz that evaluators read, and a grid.png.

    A stopped run goes on where it was when it is asked for again. torchrun spreads it over several GPUs.
    """
    from genwright.images import output
    from genwright.images.pipeline import ImageModel, SamplerSettings, SampleRun, check_batch_size
    from genwright.images.presets import unet_config

    model = _required(model)
    settings = SamplerSettings(
        sampler=sampler,
        steps=steps,
        ts=_numbers(ts, "--ts"),
        schedule=schedule,
        sigma_min=sigma_min,
        sigma_max=sigma_max,
        rho=rho,
        s_churn=s_churn,
        s_tmin=s_tmin,
        s_tmax=s_tmax,
        s_noise=s_noise,
        clip_denoised=clip_denoised,
        consistency=_consistency(training_mode),
    )
    config = unet_config(
        preset,
        image_size=image_size,
        num_channels=num_channels,
        num_res_blocks=num_res_blocks,
        channel_mult=_numbers(channel_mult, "--channel-mult"),
        attention_resolutions=_numbers(attention_resolutions, "--attention-resolutions"),
        num_heads=num_heads,
        num_heads_upsample=num_heads_upsample,
        num_head_channels=num_head_channels,
        class_cond=class_cond,
        use_scale_shift_norm=use_scale_shift_norm,
        resblock_updown=resblock_updown,
    )
    folder = output.SampleFolder(out)
    found = folder.settings() or {}
    with _ranks(device) as (rank, world, device, barrier):
        if seed is None:
            seed = found.get("seed")
        if seed is None and world > 1:
            raise UserError("Several ranks need a --seed, so that all of them draw from the same.")
        image_model = ImageModel(model, config=config, device=device, dtype=dtype, micro_batch=micro_batch)
        size = check_batch_size(batch_size) or image_model.runner.micro_batch
        labels = _numbers(classes, "--classes")
        run = SampleRun(image_model, settings, num_samples, seed, labels, generator, rank, world)
        asked = asdict(settings) | {"seed": run.seed, "classes": labels, "generator": generator}
        asked |= {"num_samples": num_samples, "model": model, "config": asdict(image_model.config)}
        asked |= {"model time": Path(model).stat().st_mtime if Path(model).is_file() else None}
        asked |= {"device": image_model.device.type, "dtype": image_model.dtype}
        asked |= {"micro_batch": image_model.runner.micro_batch}
        asked = json.loads(json.dumps(asked))  # as it is read back
        pixels = image_model.config.image_size
        path = folder.result((num_samples, pixels, pixels, 3))
        if found == asked and path.is_file():
            if rank == 0:
                _say(f"{path} is already complete.", {"samples": str(path), "seed": run.seed}, json_output)
            return
        if rank == 0:
            folder.open(asked, resume=generator == "hash")
        barrier()
        started = time.perf_counter()
        with _progress(num_samples, show=rank == 0) as advance:
            made = folder.collect(run, num_samples, size, rank, world, advance)
        seconds = time.perf_counter() - started
        barrier()
        if rank == 0:
            folder.finish(*folder.merge(num_samples), png)
            rate = made * world / seconds
            _say(
                f"{num_samples} images of seed {run.seed} in {seconds:.1f} s ({rate:.2f} images/s): {path}",
                {"samples": str(path), "seed": run.seed, "seconds": seconds, "images_per_s": rate},
                json_output,
            )
        barrier()


@commands.command()
def edit(
    model: Model = None,
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
    image_model = ImageModel(_required(model), preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
    labels = _numbers(classes, "--classes")
    points = _numbers(ts, "--ts")
    batch = image_model.edit(picture, task, hole, num_samples, seed=seed, classes=labels, steps=steps, ts=points)
    folder = SampleFolder(out)
    folder.open({"edit": task, "image": str(image), "seed": batch.seed}, resume=False)
    path = folder.finish(batch.array, batch.labels, png)
    _say(f"{num_samples} edits of seed {batch.seed}: {path}", {"samples": str(path), "seed": batch.seed}, json_output)


@commands.command()
def search(
    model: Model = None,
    reference: Annotated[Path | None, typer.Option(help="The reference's .npz (mu and sigma, or images).")] = None,
    inception: InceptionFile = None,
    begin: Annotated[str, typer.Option(help="The points before the one that is searched.")] = "0",
    end: Annotated[str, typer.Option(help="The points after it.")] = "39",
    steps: Steps = 40,
    preset: Preset = None,
    num_samples: NumSamples = 10_000,
    micro_batch: MicroBatch = None,
    seed: Seed = 42,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json_output: Json = False,
) -> None:
    """Find the next multistep point by the original's ternary search for the least FID."""
    from genwright.images.inception import Inception
    from genwright.images.metrics import fit, frechet_distance, read_features
    from genwright.images.pipeline import ImageModel
    from genwright.images.search import ternary_search

    before, after = _numbers(begin, "--begin") or (), _numbers(end, "--end") or ()
    points = (*before, *after)
    if not before or not after or list(points) != sorted(set(points)) or after[0] - before[-1] < 2:
        raise UserError(f"There is no room for a point between {begin} and {end}.")
    if reference is None or inception is None:
        raise UserError("A search needs --reference FILE and --inception FILE to measure by.")
    image_model = ImageModel(_required(model), preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
    network = Inception.load(inception, image_model.device)
    target = read_features(reference, network).statistics
    assert target is not None

    def fid(point: int) -> float:
        ts = (*before, point, *after)
        batch = image_model.sample(num_samples, seed=seed, sampler="multistep", steps=steps, ts=ts)
        distance = frechet_distance(fit(network.features(batch.array)[0]), target)
        print(f"ts {','.join(map(str, ts))}: FID {distance:.4f}", file=sys.stderr)
        return distance

    best = ternary_search(fid, before[-1], after[0])
    ts = ",".join(map(str, (*before, best, *after)))
    _say(f"The best point is {best}: --ts {ts}", {"point": best, "ts": ts}, json_output)


@commands.command()
def metrics(
    samples: Annotated[Path, typer.Argument(help="The samples' .npz: images, features, or mu and sigma.")],
    reference: Annotated[Path, typer.Argument(metavar="REF", help="The reference's, likewise.")],
    inception: InceptionFile = None,
    device: Device = "cpu",
    json_output: Json = False,
) -> None:
    """FID, sFID, Inception Score, precision and recall of samples against a reference."""
    from genwright.images.inception import Inception
    from genwright.images.metrics import compare, read_features
    from genwright.images.pipeline import pick_device

    network = None if inception is None else Inception.load(inception, pick_device(device))
    result = compare(read_features(samples, network), read_features(reference, network))
    _say("\n".join(f"{name}: {value:.4f}" for name, value in result.items()), result, json_output)


def _required(model: str | None) -> str:
    if model is None:
        raise UserError("Name a MODEL: a checkpoint file with --preset, or random:imagenet64 for random weights.")
    return model


def _consistency(training_mode: str | None) -> bool | None:
    if training_mode is None:
        return None
    modes = ("edm", "progdist", "consistency", "consistency_distillation", "consistency_training")
    if training_mode not in modes:
        raise UserError(f"There is no training mode {training_mode!r}; choose one of {', '.join(modes)}.")
    return training_mode.startswith("consistency")


def _numbers(text: str | None, flag: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise UserError(f"{flag} takes whole numbers joined by commas, not {text!r}.") from error


@contextmanager
def _ranks(device: str) -> Iterator[tuple[int, int, str, Callable[[], object]]]:
    # torchrun tells each process its rank; each takes a GPU. Yields rank, world, device and a barrier.
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1, device, lambda: None
        return
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    try:
        yield distributed.get_rank(), world, device, distributed.barrier
    finally:
        distributed.destroy_process_group()


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.speed:.1f} images/s"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not show or not console.is_terminal) as progress:
        task = progress.add_task("images", total=total)
        yield lambda count: progress.update(task, advance=count)


def _say(sentence: str, result: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(result) if as_json else sentence)
