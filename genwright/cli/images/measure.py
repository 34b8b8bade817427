"""`genwright images metrics` and `search`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli import progress
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
    from genwright.images.metrics.feature_metrics import fit, frechet_distance, read_features
    from genwright.images.metrics.inception_download import find
    from genwright.images.metrics.inception_weights import load_inception
    from genwright.images.sampling.pipeline import ImageModel
    from genwright.images.sampling.ternary_search import ternary_search

    before, after = numbers(begin, "--begin") or (), numbers(end, "--end") or ()
    points = (*before, *after)
    if not before or not after or list(points) != sorted(set(points)) or after[0] - before[-1] < 2:
        raise UserError(f"There is no room for a point between {begin} and {end}.")
    inception = inception or find()
    if reference is None or inception is None:
        raise UserError(
            "A search needs --reference FILE to measure by, and --inception FILE or `genwright pull inception`."
        )
    image_model = ImageModel(model, preset=preset, device=device, dtype=dtype, micro_batch=micro_batch)
    network = load_inception(inception, image_model.device)
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
    """FID, sFID, Inception Score, KID, precision and recall of samples against a reference, and copies among them.

    Without Inception weights, a small classifier of the reference's classes judges the samples instead.
    """
    from genwright.device import pick_device
    from genwright.images.metrics.feature_metrics import compare, read_features, too_few
    from genwright.images.metrics.inception_download import find
    from genwright.images.metrics.inception_weights import load_inception
    from genwright.images.metrics.pixel_metrics import compare_images, judge_images, read_images

    weights, on = inception or find(), pick_device(device)
    images = [read_images(path) for path in (samples, reference)]
    ours, theirs = images
    result: dict[str, float] = {}
    if weights is not None or ours is None or theirs is None:
        network = None if weights is None else load_inception(weights, on)
        features = [read_features(path, network) for path in (samples, reference)]
        result = compare(*features)
        if warning := too_few(*features):
            print(f"Warning: {warning}", file=sys.stderr)
    if ours is not None and theirs is not None:
        result |= compare_images(ours, theirs)
        if weights is None:
            print("No FID: it needs --inception FILE or `genwright pull inception`.", file=sys.stderr)
        if weights is None and (theirs.num_classes or 0) > 1:
            with progress.bar("Training the judge") as tell:
                result |= judge_images(ours, theirs, on, tell)
    say("\n".join(f"{name}: {value:.4f}" for name, value in result.items()), result, json_output)
