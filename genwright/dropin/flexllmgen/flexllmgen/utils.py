"""ExecutionEnv, units, and the benchmark's log as FlexLLMGen writes and reads it."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexllmgen.pytorch_backend import TorchDevice, TorchDisk, TorchMixedDevice
from genwright.errors import UserError

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
T = 1e12
_WARMUP = 2  # decoding steps that a projection does not extend


@dataclass(frozen=True)
class ExecutionEnv:
    """The places that a policy's percentages speak of."""

    gpu: TorchDevice | None = None
    cpu: TorchDevice | None = None
    disk: TorchDisk | None = None
    mixed: TorchMixedDevice | None = None

    @classmethod
    def create(cls, offload_dir: str) -> "ExecutionEnv":
        gpu, cpu, disk = TorchDevice("cuda:0"), TorchDevice("cpu"), TorchDisk(offload_dir)
        return cls(gpu, cpu, disk, TorchMixedDevice([gpu, cpu, disk]))

    def close_copy_threads(self) -> None:
        """Close the models of this environment, which frees what they keep on disk."""
        if self.disk is not None:
            self.disk.close_copy_threads()


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds, and tokens per second."""

    prefill_latency: float
    prefill_throughput: float
    decode_latency: float
    decode_throughput: float
    total_latency: float
    total_throughput: float


def str2bool(v: str | bool) -> bool:
    """The value of a flag that may be given as yes or no, true or false, 1 or 0."""
    word = str(v).lower()
    if word in ("yes", "true", "t", "y", "1"):
        return True
    if word in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, not {v!r}.")


def run_cmd(cmd: str) -> None:
    """Print a shell command and run it."""
    print(cmd, flush=True)
    os.system(cmd)


def project_decode_latency(costs: Sequence[float], prompt_len: int, gen_len: int) -> float:
    """The seconds of decoding `gen_len` tokens, from the costs of the first few tokens, prefill included."""
    decode = costs[1:gen_len]
    if not decode and gen_len > 1:
        raise UserError("A projection needs the cost of at least one decoding step; generate 2 tokens or more.")
    steady = decode[_WARMUP:] or decode
    missing = gen_len - 1 - len(decode)
    return sum(decode) + (missing * sum(steady) / len(steady) if missing else 0.0)


def write_benchmark_log(
    filename: str | None,
    model_size: float,
    cache_size: float,
    hidden_size: float,
    gpu_peak_mem: float,
    projected: bool,
    prefill_latency: float,
    prefill_throughput: float,
    decode_latency: float,
    decode_throughput: float,
    total_latency: float,
    total_throughput: float,
) -> str:
    """Append the report to a file, if one is given, and return it."""
    sizes = {"model size": model_size, "cache size": cache_size, "hidden size (p)": hidden_size}
    lines = [
        "\t".join(f"{name}: {size / GB:.3f} GB" for name, size in sizes.items()),
        f"peak gpu mem: {gpu_peak_mem / GB:.3f} GB\tprojected: {projected}",
        *(
            f"{stage} latency: {latency:.3f} s\t{stage} throughput: {throughput:.3f} token/s"
            for stage, latency, throughput in (
                ("prefill", prefill_latency, prefill_throughput),
                ("decode", decode_latency, decode_throughput),
                ("total", total_latency, total_throughput),
            )
        ),
    ]
    report = "\n".join(lines)
    if filename is not None:
        with Path(filename).open("a", encoding="utf-8") as log:
            log.write(f"{report}\n")
    return report


def read_benchmark_log(filename: str) -> BenchmarkResult:
    """The figures of a log's first report."""
    figure = re.compile(r" (?:latency|throughput): ([0-9.einf+-]+)")
    found = figure.findall(Path(filename).read_text(encoding="utf-8"))
    if len(found) < 6:
        raise UserError(f"{filename} is not a benchmark log: it has {len(found)} figures instead of 6.")
    return BenchmarkResult(*map(float, found[:6]))
