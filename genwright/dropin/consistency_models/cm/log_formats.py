"""Where a Logger writes: tables on the terminal and in log.txt, progress.json, progress.csv, or TensorBoard."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from genwright.arguments import one_of
from genwright.errors import UserError

_WIDEST = 30  # characters of a cell


class KVWriter(Protocol):
    def writekvs(self, kvs: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class HumanOutputFormat:
    """Tables of keys and values, and lines of text."""

    def __init__(self, filename_or_file: str | TextIO):
        self.own = isinstance(filename_or_file, str)
        self.file = Path(filename_or_file).open("w") if isinstance(filename_or_file, str) else filename_or_file  # noqa: SIM115

    def writekvs(self, kvs: Mapping[str, Any]) -> None:
        cells = {_short(key): _short(_shown(value)) for key, value in kvs.items()}
        if not cells:
            return
        widths = max(map(len, cells)), max(map(len, cells.values()))
        rule = "-" * (sum(widths) + 7)
        rows = [f"| {key:<{widths[0]}} | {cells[key]:<{widths[1]}} |" for key in sorted(cells, key=str.lower)]
        self.writeseq(["\n".join([rule, *rows, rule])])

    def writeseq(self, seq: Iterable[str]) -> None:
        self.file.write(" ".join(seq) + "\n")
        self.file.flush()

    def close(self) -> None:
        if self.own:
            self.file.close()


class JSONOutputFormat:
    """One object per line."""

    def __init__(self, filename: str):
        self.file = Path(filename).open("w")  # noqa: SIM115

    def writekvs(self, kvs: Mapping[str, Any]) -> None:
        plain = {key: float(value) if hasattr(value, "dtype") else value for key, value in kvs.items()}
        self.file.write(json.dumps(plain) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class CSVOutputFormat:
    """One row for each dump; a new key adds a column."""

    def __init__(self, filename: str):
        self.file = Path(filename).open("w+", newline="")  # noqa: SIM115
        self.keys: list[str] = []

    def writekvs(self, kvs: Mapping[str, Any]) -> None:
        if new := sorted(kvs.keys() - set(self.keys)):
            self.keys += new
            self.file.seek(0)
            before = list(csv.DictReader(self.file))
            self.file.seek(0)
            self.file.truncate()
            self._writer().writeheader()
            self._writer().writerows(before)
        self._writer().writerow(dict(kvs))
        self.file.flush()

    def _writer(self) -> "csv.DictWriter[str]":
        return csv.DictWriter(self.file, self.keys, lineterminator="\n")

    def close(self) -> None:
        self.file.close()


class TensorBoardOutputFormat:
    """Scalars for TensorBoard; each dump is a step."""

    def __init__(self, dir: str):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "The log format tensorboard needs the package tensorboard, which is not installed."
            ) from None
        self.writer: Any = SummaryWriter(dir)
        self.step = 1

    def writekvs(self, kvs: Mapping[str, Any]) -> None:
        for key, value in kvs.items():
            self.writer.add_scalar(key, float(value), self.step)
        self.writer.flush()
        self.step += 1

    def close(self) -> None:
        self.writer.close()


def make_output_format(format: str, ev_dir: str, log_suffix: str = "") -> KVWriter:
    """The writer of a format's name, into a folder."""
    os.makedirs(ev_dir, exist_ok=True)
    folder = Path(ev_dir)
    writers: dict[str, Callable[[], KVWriter]] = {
        "stdout": lambda: HumanOutputFormat(sys.stdout),
        "log": lambda: HumanOutputFormat(str(folder / f"log{log_suffix}.txt")),
        "json": lambda: JSONOutputFormat(str(folder / f"progress{log_suffix}.json")),
        "csv": lambda: CSVOutputFormat(str(folder / f"progress{log_suffix}.csv")),
        "tensorboard": lambda: TensorBoardOutputFormat(str(folder / f"tb{log_suffix}")),
    }
    return writers[one_of("The log format", format, writers)]()


def _shown(value: Any) -> str:
    return f"{float(value):<8.3g}" if hasattr(value, "__float__") else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
