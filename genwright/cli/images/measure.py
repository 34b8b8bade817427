"""`genwright images metrics` and `search`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli import progress
from genwright.cli.app import Json
from genwright.cli.flags import expand, split
from genwright.cli.images.flags import (
    Device,
    InceptionFile,
    Model,
    ModelFlags,
    NumSamples,
    Seed,
    print_result,
)
from genwright.errors import UserError


@expand
def search(
    flags: ModelFlags,
    model: Model = "emoji",
    reference: Annotated[Path | None, typer.Option(help="Reference .npz, of images or of mu and sigma.")] = None,
    inception: InceptionFile = None,
    begin: Annotated[str, typer.Option(help="Time steps before the searched one.")] = "0",
    end: Annotated[str, typer.Option(help="Time steps after the searched one.")] = "39",
    steps: Annotated[int, typer.Option(help="Noise levels that the time steps are indices of.")] = 40,
    num_samples: NumSamples = 10_000,
    seed: Seed = 42,
    json_output: Json = False,
) -> None:
    """Find the next time step of multistep sampling with the lowest FID, by the original's ternary search."""
    from genwright.images.metrics.feature_metrics import fit, frechet_distance, read_features
    from genwright.images.metrics.inception_download import find
    from genwright.images.metrics.inception_weights import load_inception
    from genwright.images.sampling.ternary_search import ternary_search

    before, after = split(begin, "--begin"), split(end, "--end")
    points = (*before, *after)
    if list(points) != sorted(set(points)) or after[0] - before[-1] < 2:
        raise UserError(f"There must be room for a time step between --begin {begin} and --end {end}.")
    inception = inception or find()
    if reference is None or inception is None:
        raise UserError("A search needs --reference FILE, and --inception FILE or `genwright pull inception`.")
    image_model = flags.load(model)
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
    print_result(f"The best point is {best}: --ts {ts}", {"point": best, "ts": ts}, json_output)


def metrics(
    samples: Annotated[Path, typer.Argument(help=".npz of the samples: images, features, or mu and sigma.")],
    reference: Annotated[Path, typer.Argument(metavar="REF", help=".npz of the references, likewise.")],
    inception: InceptionFile = None,
    device: Device = "cpu",
    json_output: Json = False,
) -> None:
    """Compute FID, sFID, Inception Score, KID, precision, recall and near copies of samples against a reference.

    Without Inception weights, a small classifier is trained on the reference's classes and used instead.
    """
    from genwright.device import pick_device
    from genwright.images.metrics.feature_metrics import compare, read_features, too_few
    from genwright.images.metrics.inception_download import find
    from genwright.images.metrics.inception_weights import load_inception
    from genwright.images.metrics.judge import judge_images
    from genwright.images.metrics.pixel_metrics import compare_images, read_images

    weights, torch_device = inception or find(), pick_device(device)
    images = [read_images(path) for path in (samples, reference)]
    ours, theirs = images
    result: dict[str, float] = {}
    if weights is not None or ours is None or theirs is None:
        network = None if weights is None else load_inception(weights, torch_device)
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
                result |= judge_images(ours, theirs, torch_device, tell)
    print_result("\n".join(f"{name}: {value:.4f}" for name, value in result.items()), result, json_output)
