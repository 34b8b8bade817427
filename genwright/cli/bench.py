"""`genwright bench`: measure speed and compare it with the device's limits."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import Json, check_writable, new_app
from genwright.cli.flags import expand
from genwright.cli.progress import stages
from genwright.errors import UserError
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.bench.rows import Row

app = new_app()
DRAWINGS = ".png", ".svg", ".pdf"


@app.command()
@expand
def bench(
    settings: Annotated[dict[str, Any], EngineConfig],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments or models: a path, a name from `genwright pull`, or random:NAME."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences or requests; may be repeated.")] = None,
    prompt_length: Annotated[list[int] | None, typer.Option(min=1, help="Tokens per prompt; may be repeated.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens per answer.")] = None,
    rate: Annotated[list[float] | None, typer.Option(min=1e-6, help="Requests per second; may be repeated.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples per measurement.")] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also measure transformers and llama.cpp, in turns.")] = False,
    profile: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the last sample.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file with the columns of PyTorch's benchmark.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the roofline as a PNG, SVG or PDF file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure start-up time, tokens and bytes per second, and compare them with the limits of the device.

    Flags of the model override the settings of the experiments.
    """
    from genwright.bench.experiments import EXPERIMENTS, adapt, choose

    if listing:
        lines = [f"{each.name:<24} {each.device:<5} {each.model:<30} {each.about}" for each in EXPERIMENTS.values()]
        print(json.dumps([asdict(each) for each in EXPERIMENTS.values()]) if as_json else "\n".join(lines))
        return
    for path in filter(None, (profile, csv, plot)):
        check_writable(path)
    if plot is not None and plot.suffix.lower() not in DRAWINGS:
        raise UserError(f"--plot must be a file that ends in {', '.join(DRAWINGS[:-1])} or {DRAWINGS[-1]}, not {plot}.")
    from genwright.bench.run import Settings, run
    from genwright.device import pick_device

    experiments = [
        adapt(experiment, settings, batch, prompt_length, max_new_tokens, samples, rate)
        for experiment in choose(names or (), pick_device(settings.get("device", "auto")).type)
    ]
    found: list[Row] = []
    notes: list[str] = []
    with stages() as progress:
        for rows, new_notes in run(experiments, Settings(peers, profile), progress):
            found += rows
            notes += new_notes
            if not sys.stderr.isatty():
                print(*map(_log_line, rows), sep="\n", file=sys.stderr, flush=True)
    _report(found, notes, as_json)
    if csv is not None:
        from genwright.bench.report import to_csv

        csv.write_text(to_csv(found), encoding="utf-8")
    if plot is not None:
        from genwright.bench.plot import draw

        draw(found, plot)
    if any(row.error and not row.skipped for row in found):
        raise typer.Exit(1)


def _report(rows: "Sequence[Row]", notes: Sequence[str], as_json: bool) -> None:
    from genwright.bench.report import LEGEND, SERVING_LEGEND, limits, plain

    if as_json:
        print(json.dumps({"rows": [row.as_dict() for row in rows], "notes": list(notes)}))
        return
    print(plain(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    measured = [limits(rows), LEGEND] if any(row.read_gbps is not None for row in rows) else []
    if any(row.total is not None for row in rows):
        measured.append(SERVING_LEGEND)
    for note in (*measured, *notes):
        print(f"\n{note}")


def _log_line(row: "Row") -> str:
    if row.total is not None:
        from genwright.bench.report import arrivals

        return (
            f"{row.name}, {row.engine}, {row.batch} requests, {arrivals(row)}: {row.total:,.1f} tokens/s, prompt and "
            f"new, {row.limits_share:.0%} of both limits"
        )
    if row.decode is None or row.share is None:
        return f"{row.name}, {row.engine}: {row.error}"
    return (
        f"{row.name}, {row.engine}, batch {row.batch}, {row.prompt}+{row.new} tokens: {row.decode:.1f} tokens/s of "
        f"decoding, {row.share:.0%} of the memory bandwidth; first token of the process after {row.first_token:.2f} s"
    )
