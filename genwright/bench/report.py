"""The report: a table for people, and PyTorch's CSV for programs."""

import csv
import io
from collections.abc import Callable, Sequence

from genwright.bench.experiments import EXPERIMENTS
from genwright.bench.rows import Row


def _shown(value: float | None, form: str = ",.1f") -> str:
    return "-" if value is None else format(value, form)


def _both(low: float | None, high: float | None, form: str) -> str:
    return "-" if low is None else f"{_shown(low, form)}, {_shown(high, form)}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _tokens(row: Row) -> str:
    if not row.serving:
        return f"{row.prompt}+{row.new}"
    return f"{row.prompt}-{row.longest_prompt}+{row.new}-{row.longest_new}"


def arrivals(row: Row) -> str:
    """How the requests of a serving experiment came."""
    return "at once" if row.rate is None else f"{row.rate:,.3g}/s"


# heading: the cell of a row
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "experiment": lambda row: row.name,
    "engine": lambda row: row.engine,
    "weights": lambda row: row.dtype,
    "batch": lambda row: str(row.batch) if row.prompt else "-",
    "tokens": lambda row: _tokens(row) if row.prompt else "-",
    "arrivals": lambda row: "-" if row.total is None else arrivals(row),
    "load s": lambda row: _shown(row.load),
    "first s": lambda row: _shown(row.first_token, ".2f"),
    "call s": lambda row: _shown(row.first_call),
    "prefill/s": lambda row: _shown(row.prefill),
    "TFLOP/s": lambda row: _shown(row.prefill_tflops, ".3g"),
    "of peak": lambda row: _shown(row.prefill_share, ".0%"),
    "total/s": lambda row: _shown(row.total),
    "prompt/s": lambda row: _shown(row.prompt_per_second),
    "tok/s": lambda row: _shown(row.tokens_per_second),
    "decode/s": lambda row: _shown(row.decode),
    "spread": lambda row: "-" if row.decode is None else f"{row.decode_low:,.1f}-{row.decode_high:,.1f}",
    "GB/s": lambda row: _shown(row.gbps),
    "of limit": lambda row: _shown(row.share, ".0%"),
    "TTFT p50, p99 s": lambda row: _both(row.ttft_p50, row.ttft_p99, ".2f"),
    "TBT p50, p99 ms": lambda row: _both(_ms(row.tbt_p50), _ms(row.tbt_p99), ".1f"),
    "of both limits": lambda row: _shown(row.limits_share, ".0%"),
    "weights GB/s": lambda row: _shown(row.weights_gbps),
    "GB": lambda row: _shown(row.memory),
    "note": lambda row: row.error or "",
}
LEFT = ("experiment", "engine", "weights", "note")  # columns that are aligned left
LEGEND = """\
tokens: of a prompt + new; first s, call s: first token and whole of the first call in a process; prefill/s: prompt
tokens per second, with TFLOP/s and their share of a matrix product's; tok/s: new tokens per second of whole calls;
decode/s: after the first token, all sequences together, median and spread; GB/s: weights and cache read per second of
decoding, and their share of what memory gives; weights GB/s: weights alone, over whole calls, as gpt-fast counts them;
GB: memory at the peak."""
SERVING_LEGEND = """\
Serving: batch is the number of requests, arrivals how many come per second; total/s, prompt/s, tok/s: prompt and new
tokens together, and each, per second of the whole run; TTFT: time to first token, since the request's arrival; TBT:
time between tokens of a stream; of both limits: seconds that prefill and then decoding would take at the device's
limits, all requests together, over the seconds taken."""


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and the cells of each row; empty columns are left out."""
    headings = [
        heading
        for heading, show in _COLUMNS.items()
        if (heading != "engine" or any(row.engine != "genwright" for row in rows))
        and any(show(row) not in ("-", "") for row in rows)
    ]
    return headings, [[_COLUMNS[heading](row) for heading in headings] for row in rows]


def plain(rows: Sequence[Row], room: int | None = None) -> str:
    """The table as text; if it is wider than `room`, rows become columns."""
    headings, lines = table(rows)
    shown = _align([headings, *lines], [heading in LEFT for heading in headings])
    if room is not None and max(map(len, shown)) > room:
        shown = _align(list(zip(headings, *lines, strict=True)), [True] + [False] * len(lines))
    return "\n".join(shown)


def _align(lines: Sequence[Sequence[str]], left: Sequence[bool]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if first else cell.rjust(width)
            for cell, width, first in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]


def limits(rows: Sequence[Row]) -> str:
    """The limits of the devices, as measured with the experiments."""
    lines = []
    for device in dict.fromkeys((row.device, row.arch) for row in rows if row.read_gbps is not None):
        reads = [row.read_gbps for row in rows if (row.device, row.arch) == device and row.read_gbps is not None]
        peaks = [
            row.matmul_tflops for row in rows if (row.device, row.arch) == device and row.matmul_tflops is not None
        ]
        lines.append(
            f"{device[0]} ({device[1]}): memory {min(reads):,.1f} to {max(reads):,.1f} GB/s, matrix products "
            f"{min(peaks):.3g} to {max(peaks):.3g} TFLOP/s, measured in these runs"
        )
    return "\n".join(lines)


def to_csv(rows: Sequence[Row]) -> str:
    """One line per figure, in the columns of PyTorch's benchmarks/gpt_fast; its three figures come first."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["name", "metric", "target", "actual", "dtype", "device", "arch", "is_model"])
    for row in rows:
        experiment = EXPERIMENTS.get(row.name)
        target = experiment.target if experiment and row.engine == "genwright" else None
        name = target.name if target else row.name if row.batch == 1 else f"{row.name} (batch {row.batch})"
        if row.serving:
            name = f"{row.name} ({row.batch} requests, {arrivals(row)})"
        figures = {
            "token_per_sec": row.tokens_per_second,
            "memory_bandwidth(GB/s)": row.weights_gbps,
            "compilation_time(s)": row.first_call,
            "load_time(s)": row.load,
            "prefill_token_per_sec": row.prefill,
            "decode_token_per_sec": row.decode,
            "decode_bandwidth(GB/s)": row.gbps,
            "share_of_bandwidth": row.share,
            "memory(GB)": row.memory,
            "total_token_per_sec": row.total,
            "prompt_token_per_sec": row.prompt_per_second,
            "ttft_p50(ms)": _ms(row.ttft_p50),
            "ttft_p99(ms)": _ms(row.ttft_p99),
            "tbt_p50(ms)": _ms(row.tbt_p50),
            "tbt_p99(ms)": _ms(row.tbt_p99),
            "share_of_both_limits": row.limits_share,
        }
        targets = target.figures() if target else {}
        rest = [row.dtype, row.device, row.arch, True]
        if row.error is not None:
            writer.writerow([name, "error", "", row.error, *rest])
            continue
        for metric, actual in figures.items():
            if actual is not None:
                writer.writerow([name, metric, targets.get(metric, ""), f"{actual:.2f}", *rest])
    return sink.getvalue()
