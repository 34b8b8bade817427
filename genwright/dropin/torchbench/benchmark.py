"""The benchmark's command: run the experiments, and append a row for each figure to a CSV and a JSON file."""

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import torch
from common import Experiment, all_experiments, new_experiment, register_experiment
from generate import get_arch_name, run_llama2_7b_bf16, run_llama2_7b_int8, run_mixtral_8x7b_int8
from micro_experiments import run_gather_gemv, run_gemv, run_layer_norm, run_mlp_layer_norm_gelu

from genwright.errors import UserError

__all__ = [
    "Experiment", "all_experiments", "get_arch_name", "main", "new_experiment", "output_csv", "output_json",
    "register_experiment", "run_gather_gemv", "run_gemv", "run_layer_norm", "run_llama2_7b_bf16", "run_llama2_7b_int8",
    "run_mixtral_8x7b_int8", "run_mlp_layer_norm_gelu",
]  # fmt: skip

DEFAULT_OUTPUT_FILE = "gpt_fast_benchmark.csv"


def output_csv(output_file: str, headers: Sequence[str], row: Sequence[Any]) -> None:
    """Append a row; a file with fewer columns gets the new headers, and zeros in its older rows."""
    path = Path(output_file)
    lines: list[list[Any]] = [list(headers)]
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file)) or [[]]
        if len(headers) > len(lines[0]):
            lines[0] = list(headers)
    lines.append([f"{value:.6f}" if isinstance(value, float) else value for value in row])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(line + ["0"] * (len(lines[0]) - len(line)) for line in lines)


def output_json(output_file: str, headers: Sequence[str], row: Sequence[Any]) -> None:
    """Append a row, as a record of PyTorch's benchmark database, to the file of the same name in JSON lines."""
    values = dict(zip(headers, row, strict=True))
    record = {
        "benchmark": {
            "name": "PyTorch gpt-fast benchmark",
            "mode": "inference",
            "dtype": values["dtype"],
            "extra_info": {"device": values["device"], "arch": values["arch"]},
        },
        "model": {
            "name": values["name"],
            "type": "OSS model" if values["is_model"] else "micro-benchmark",
            "origins": ["pytorch"],
        },
        "metric": {
            "name": values["metric"],
            "benchmark_values": [values["actual"]],
            "target_value": values["target"],
        },
    }
    with Path(output_file).with_suffix(".json").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def main(output_file: str = DEFAULT_OUTPUT_FILE, only_model: str | None = None) -> None:
    """Run all experiments, or one of them, on the GPU if there is one."""
    if only_model is not None and only_model not in all_experiments:
        raise UserError(f"There is no experiment {only_model!r}; there are {', '.join(all_experiments)}.")
    Path(output_file).parent.mkdir(parents=True, exist_ok=True)
    Path(output_file).open("a", encoding="utf-8").close()  # a file that cannot be written is found before the work
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = [all_experiments[only_model]] if only_model else list(all_experiments.values())
    headers = [field.name for field in fields(Experiment)]
    for run in chosen:
        for experiment in run(device):
            output_csv(output_file, headers, astuple(experiment))
            output_json(output_file, headers, astuple(experiment))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run PyTorch's experiments on the engine.")
    parser.add_argument("--output", default=DEFAULT_OUTPUT_FILE, help="The CSV file that rows are appended to.")
    parser.add_argument("--only", help="The name of one experiment.")
    return parser


if __name__ == "__main__":
    arguments = parser().parse_args()
    main(arguments.output, arguments.only)
