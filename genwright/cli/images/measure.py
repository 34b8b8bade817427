"""`genwright images metrics` and `search`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.images.options import (
    Device,
    Dtype,
    InceptionFile,
    Json,
    MicroBatch,
    Model,
    NumSamples,
    Preset,
    Seed,
    Steps,
    numbers,
    say,
)
from genwright.errors import UserError


def search(
    model: Model = "emoji",
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

    before, after = numbers(begin, "--begin") or (), numbers(end, "--end") or ()
    points = (*before, *after)
    if not before or not after or list(points) != sorted(set(points)) or after[0] - before[-1] < 2:
        raise UserError(f"There is no room for a point between {begin} and {end}.")
    if reference is None or inception is None:
        raise UserError("A search needs --reference FILE and --inception FILE to measure by.")
    image_model = ImageModel(model, preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
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
    say(f"The best point is {best}: --ts {ts}", {"point": best, "ts": ts}, json_output)


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
    from genwright.kernels.device import pick_device

    network = None if inception is None else Inception.load(inception, pick_device(device))
    result = compare(read_features(samples, network), read_features(reference, network))
    say("\n".join(f"{name}: {value:.4f}" for name, value in result.items()), result, json_output)
