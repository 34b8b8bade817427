"""`genwright images sample`."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from genwright.cli.images.options import (
    BatchSize,
    Classes,
    Device,
    Dtype,
    Flag,
    ImageSize,
    Json,
    MicroBatch,
    Model,
    NumSamples,
    Out,
    Png,
    Preset,
    Seed,
    Steps,
    Switch,
    TextFlag,
    Ts,
    decimals,
    numbers,
    ranks,
    say,
)
from genwright.cli.progress import bar
from genwright.errors import UserError


def sample(
    model: Model = "emoji",
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
        str | None, typer.Option(help="heun, euler, dpm, ancestral, dpmpp-2m, onestep, multistep or progdist.")
    ] = None,
    steps: Steps = None,
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
    out: Out = None,
    png: Png = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json_output: Json = False,
) -> None:
    """Sample images into an .npz that evaluators read, and a grid.png.

    A stopped run goes on where it was when it is asked for again. torchrun spreads it over several GPUs.
    """
    from genwright.images.model.checkpoint import describe, locate
    from genwright.images.model.presets import unet_config
    from genwright.images.sampling import output
    from genwright.images.sampling.pipeline import ImageModel, SampleRun
    from genwright.images.sampling.sampler_settings import sampler_settings

    settings = sampler_settings(
        describe(model).sampler,
        sampler=sampler,
        steps=steps,
        ts=numbers(ts, "--ts"),
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
        channel_mult=decimals(channel_mult, "--channel-mult"),
        attention_resolutions=numbers(attention_resolutions, "--attention-resolutions"),
        num_heads=num_heads,
        num_heads_upsample=num_heads_upsample,
        num_head_channels=num_head_channels,
        class_cond=class_cond,
        use_scale_shift_norm=use_scale_shift_norm,
        resblock_updown=resblock_updown,
    )
    folder = None if out is None else output.SampleFolder(out)
    found = (folder and folder.settings()) or {}
    with ranks(device) as (rank, world, device, barrier):
        if seed is None:
            seed = found.get("seed")
        if world > 1 and (seed is None or out is None):
            raise UserError("Several ranks need --seed and --out, so that they draw and write as one.")
        image_model = ImageModel(model, config=config, device=device, dtype=dtype, micro_batch=micro_batch)
        run = SampleRun(image_model, settings, num_samples, seed, classes, generator, rank, world)
        size = run.batch_size(batch_size)
        asked = asdict(settings) | {"seed": run.seed, "classes": run.classes, "generator": generator}
        asked |= {"num_samples": num_samples, "model": model, "config": asdict(image_model.config)}
        asked |= {"model time": locate(model).stat().st_mtime if locate(model).exists() else None}
        asked |= {"device": image_model.device.type, "dtype": image_model.dtype}
        asked |= {"micro_batch": image_model.runner.micro_batch}
        asked = json.loads(json.dumps(asked))  # as it is read back
        folder = folder or output.SampleFolder.fresh(Path("samples"))
        path = folder.result((num_samples, *run.shape[1:], 3))
        result: dict[str, Any] = {"samples": str(path), "grid": str(folder.grid), "seed": run.seed}
        if found == asked and path.is_file():
            if rank == 0:
                say(f"{path} is already complete.", result, json_output)
            return
        if rank == 0:
            folder.open(asked, resume=generator == "hash")
        barrier()
        started = time.perf_counter()
        try:
            with bar("Sampling", show=rank == 0) as progress:
                made = folder.collect(run, num_samples, size, rank, world, progress)
        except KeyboardInterrupt:
            if rank == 0 and generator == "hash":
                done = len(folder.done())
                print(
                    f"Stopped after {done} images; the same command with --out {folder.folder} goes on.",
                    file=sys.stderr,
                )
            raise
        seconds = time.perf_counter() - started
        barrier()
        if rank == 0:
            folder.finish(*folder.merge(num_samples), png)
            rate = made * world / seconds
            told = f"{num_samples} images of seed {run.seed} in {seconds:.1f} s ({rate:.2f} images/s)"
            say(f"{told}: {folder.grid}, {path}", result | {"seconds": seconds, "images_per_s": rate}, json_output)
        barrier()


def _consistency(training_mode: str | None) -> bool | None:
    if training_mode is None:
        return None
    modes = ("edm", "progdist", "consistency", "consistency_distillation", "consistency_training")
    if training_mode not in modes:
        raise UserError(f"There is no training mode {training_mode!r}; choose one of {', '.join(modes)}.")
    return training_mode.startswith("consistency")
