"""FlexLLMGen's log of a benchmark, its projection, flags that are true or false, and timers."""

import argparse
import runpy
from pathlib import Path

import pytest

from genwright.errors import UserError

FIGURES = (55.8 * 2**30, 2**30, 2**20, 2**31, True, 1.25, 1638.4, 2.5, 49.6, 3.75, 34.133)
LOG = """\
model size: 55.800 GB\tcache size: 1.000 GB\thidden size (p): 0.001 GB
peak gpu mem: 2.000 GB\tprojected: True
prefill latency: 1.250 s\tprefill throughput: 1638.400 token/s
decode latency: 2.500 s\tdecode throughput: 49.600 token/s
total latency: 3.750 s\ttotal throughput: 34.133 token/s"""


def test_the_log_is_appended_to_and_read(tmp_path: Path) -> None:
    from flexllmgen.utils import BenchmarkResult, read_benchmark_log, write_benchmark_log

    log = tmp_path / "run.log"
    assert write_benchmark_log(str(log), *FIGURES) == LOG
    assert write_benchmark_log(None, *FIGURES) == LOG
    write_benchmark_log(str(log), *FIGURES)
    assert log.read_text() == f"{LOG}\n{LOG}\n"
    assert read_benchmark_log(str(log)) == BenchmarkResult(1.25, 1638.4, 2.5, 49.6, 3.75, 34.133)
    log.write_text("nothing")
    with pytest.raises(UserError, match="not a benchmark log"):
        read_benchmark_log(str(log))


def test_a_projection_extends_the_steady_steps() -> None:
    from flexllmgen.utils import project_decode_latency

    assert project_decode_latency([9, 5, 4, 1, 1], 512, 32) == 5 + 4 + 29 * 1
    assert project_decode_latency([9, 5, 4, 1, 1], 512, 5) == 11
    assert project_decode_latency([9, 2], 512, 5) == 8
    assert project_decode_latency([9], 512, 1) == 0
    with pytest.raises(UserError, match="at least one decoding step"):
        project_decode_latency([9], 512, 2)


@pytest.mark.parametrize("word", ["yes", "True", "t", "1", True])
def test_true(word) -> None:
    from flexllmgen.utils import str2bool

    assert str2bool(word) is True
    with pytest.raises(argparse.ArgumentTypeError):
        str2bool(f"{word}x")


@pytest.mark.parametrize("word", ["no", "FALSE", "f", "0", False])
def test_false(word) -> None:
    from flexllmgen.utils import str2bool

    assert str2bool(word) is False


def test_timers_are_shared_by_name() -> None:
    from flexllmgen.timer import timers

    timer = timers("a test's")
    timer.reset()
    assert timer.elapsed() == 0
    order = []
    timer.start(lambda: order.append("start"))
    assert timer.started
    timer.stop(lambda: order.append("stop"))
    timer.costs.append(3.0)
    assert timers("a test's") is timer
    assert "a test's" in timers
    assert order == ["start", "stop"]
    assert timer.elapsed("sum") == sum(timer.costs) == 2 * timer.elapsed()


def test_the_log_and_the_projection_are_the_originals(original: Path, tmp_path: Path) -> None:
    from flexllmgen import utils

    theirs = runpy.run_path(str(original / "flexllmgen" / "utils.py"))
    assert theirs["write_benchmark_log"](str(tmp_path / "log"), *FIGURES) == LOG
    assert vars(theirs["read_benchmark_log"](str(tmp_path / "log"))) == vars(
        utils.read_benchmark_log(str(tmp_path / "log"))
    )
    costs = [3.0, 2.0, 1.5, 1.25, 1.0, 1.0]
    assert theirs["project_decode_latency"](costs, 512, 32) == pytest.approx(
        utils.project_decode_latency(costs, 512, 32)
    )
