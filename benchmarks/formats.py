"""Decoding in every format of weights, as a Markdown table: `python -m benchmarks.formats`.

Each line is an experiment of `genwright bench` in a process of its own, and is printed when it is measured. Its long
prompt is left out, because three calls of it tell little; benchmarks/prefill.py measures prompts. On a machine without
a GPU the model is a few layers of a small shape; `--model` names another one.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from genwright.bench.experiments import EXPERIMENTS, Experiment, Point
from genwright.bench.report import limits
from genwright.bench.rows import Row
from genwright.bench.run import Settings, run
from genwright.device import pick_device

FORMATS = ("bf16", "int8", "int4", "int4_asym", "fp8", "fp8_inputs")
MODELS = {"cuda": "random:llama-3.1-8b", "cpu": "random:smollm2-135m,layers=4"}


def heading(experiment: Experiment) -> list[str]:
    """The table's first two lines."""
    batches = (point.batch for point in experiment.points if isinstance(point, Point))
    cells = ["weights", *(cell for batch in batches for cell in (f"batch {batch}, decode/s", "share"))]
    return [_joined(cells), _joined(["---"] + ["---:"] * (len(cells) - 1))]


def line(rows: Sequence[Row]) -> str:
    """One experiment, of which every point is a row; figures that are missing are dashes."""
    cells = [cell for row in rows for cell in (_shown(row.decode), _shown(row.share, ".0%").replace("%", " %"))]
    return _joined([rows[0].name, *cells])


def spread(measured: Iterable[Sequence[Row]]) -> float:
    """The largest difference between the samples of a point, as a share of their median."""
    shares = (
        (row.decode_high - row.decode_low) / row.decode
        for rows in measured
        for row in rows
        if row.decode and row.decode_low and row.decode_high
    )
    return max(shares, default=0.0)


def _shown(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    device = pick_device("auto").type
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODELS[device])
    model = parser.parse_args().model
    experiments = [
        replace(each, name=name, model=model, config=replace(each.config, device=device), points=each.points[:-1])
        for name, each in ((name, EXPERIMENTS[f"llama3_8b_{name}"]) for name in FORMATS)
    ]
    print(*heading(experiments[0]), sep="\n", flush=True)
    measured: list[list[Row]] = []
    for rows, _ in run(experiments, Settings(), lambda what, done, total: None):
        measured.append(rows)
        print(line(rows), flush=True)
        for row in rows:
            if row.error is not None:
                print(f"{row.name}, batch {row.batch}: {row.error}", file=sys.stderr, flush=True)
    print(f"\n{model}, medians of {experiments[0].samples} samples, {spread(measured):.1%} apart or less in decode/s")
    print(limits([row for rows in measured for row in rows]))
    sys.exit(any(row.error is not None for rows in measured for row in rows))


if __name__ == "__main__":
    main()
