"""The roofline plot: measured speeds below the limits of the device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genwright.bench.report import arrivals
from genwright.bench.rows import Row
from genwright.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8e5aa8", "#d4a017", "#3d405b", "#4f9d9d", "#a23b72")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: on the left operations over bytes, on the right shares of the limits."""
    shown = [row for row in rows if row.share is not None or row.limits_share is not None]
    if not shown:
        raise UserError("There is nothing to draw, because no experiment has figures.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    series = list(dict.fromkeys((row.name, row.engine) for row in shown))
    colours = {each: _COLOURS[number % len(_COLOURS)] for number, each in enumerate(series)}
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(12, max(4.4, 0.4 * len(shown) + 1.6)), width_ratios=(3, 2), layout="constrained"
        )
        _roofline(left, shown, colours)
        _shares(right, shown, colours)
        figure.suptitle(", ".join(dict.fromkeys(f"{row.device} ({row.arch})" for row in shown)))
        try:
            figure.savefig(path, dpi=140)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be drawn: {error}.") from None
        finally:
            pyplot.close(figure)


def _roofline(axes: "Axes", rows: Sequence[Row], colours: Mapping[tuple[str, str], str]) -> None:
    """Points below the limits of memory and of matrix products; both axes are logarithmic."""
    calls = [row for row in rows if not row.serving]
    decodes = [(row, (row.decode_tflops or 0) * 1e3 / (row.gbps or 1), row.decode_tflops or 0) for row in calls]
    prefills = [(row, row.prefill_intensity or 0, row.prefill_tflops or 0) for row in calls]
    servings = [(row, row.serving_intensity or 0, row.serving_tflops or 0) for row in rows if row.serving]
    lowest = min(x for _, x, _ in decodes + prefills + servings) / 3
    highest = max(x for _, x, _ in decodes + prefills + servings) * 3
    for device in dict.fromkeys(row.device for row in rows):
        read = max(row.read_gbps or 0 for row in rows if row.device == device) * 1e9
        peak = max(row.matmul_tflops or 0 for row in rows if row.device == device) * 1e12
        label = f"{device}: {read / 1e9:,.1f} GB/s from memory, {peak / 1e12:.3g} TFLOP/s of matrix products"
        bend = peak / read
        lowest, highest = min(lowest, bend / 4), max(highest, 4 * bend)
        axes.plot([lowest, bend, highest], [lowest * read, peak, peak], color="#444444", linewidth=1.4, label=label)
    kinds = ((decodes, "o", "decoding"), (prefills, "^", "reading the prompt"), (servings, "s", "serving"))
    for points, marker, label in kinds:
        if points:
            axes.scatter([], [], marker=marker, color="#777777", label=label)
        for row, x, y in points:
            colour = colours[row.name, row.engine]
            axes.scatter(x, y * 1e12, marker=marker, s=46, color=colour, edgecolor="white", zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(lowest, highest))
    axes.set(xlabel="operations per byte of weights and cache", ylabel="operations per second")
    axes.grid(which="major", color="#e4e4e4", zorder=0)
    axes.legend(loc="lower right", frameon=False, fontsize=8)


def _shares(axes: "Axes", rows: Sequence[Row], colours: Mapping[tuple[str, str], str]) -> None:
    """A bar per row: the share of the memory bandwidth that decoding uses, or of both limits that serving reaches."""
    names = [_label(row) for row in rows]
    shares = [100 * (row.share or row.limits_share or 0) for row in rows]
    places = range(len(rows))
    axes.barh(places, [100] * len(rows), color="#f0f0f0")
    axes.barh(places, shares, color=[colours[row.name, row.engine] for row in rows])
    for place, row, share in zip(places, rows, shares, strict=True):
        inside = share > 60  # no room behind the bar
        where, side, colour = (share - 1, "right", "white") if inside else (share + 1, "left", "black")
        words = f"{share:.0f} %   {row.total if row.serving else row.decode:,.1f} tokens/s"
        axes.text(where, place, words, va="center", ha=side, color=colour, fontsize=8)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    meaning = []
    if not all(row.serving for row in rows):
        meaning.append("bytes read per second of decoding, % of what memory gives")
    if any(row.serving for row in rows):
        meaning.append("serving: time at both limits, % of the time taken")
    axes.set(xlim=(0, max(100, *shares)), xlabel="\n".join(meaning))


def _label(row: Row) -> str:
    batch = f", {arrivals(row)}" if row.serving else "" if row.batch == 1 else f" x {row.batch}"
    engine = "" if row.engine == "genwright" else f"\n{row.engine}"
    return f"{row.name}{batch}{engine}"
