"""Experiments in processes of their own: what breaks is a row, and the others still run."""

import signal
from dataclasses import replace

import torch

from genwright.bench.experiments import EXPERIMENTS, Experiment, Point
from genwright.bench.run import Settings, _why, run
from genwright.text.settings import EngineConfig

TINY = "random:stories15m,layers=1"
SMALL = (Point(1, 4, 3),)
CPU = EngineConfig(device="cpu")


def test_a_broken_experiment_is_a_row_and_the_others_run(tmp_path):
    experiments = [
        Experiment("missing", "/no/such/model", CPU, "", SMALL),
        Experiment("fine", TINY, CPU, "", SMALL, 1),
        Experiment("short of memory", TINY, replace(CPU, cpu_mem=0.01), "", SMALL),
    ]
    told: list[str] = []
    settings = Settings(profile=tmp_path / "trace.json")
    found = list(run(experiments, settings, lambda what, *_: told.append(what)))
    missing, fine, short = (rows[0] for rows, _ in found)
    assert missing.error is not None
    assert "no file or folder" in missing.error
    assert fine.error is None
    assert fine.decode
    assert short.error is not None
    assert "would fit" in short.error
    assert "aten::" in found[1][1][0]  # the most expensive operations
    assert '"traceEvents"' in (tmp_path / "trace-2.json").read_text()
    assert "2/3 fine: loading" in told


def test_without_a_gpu_its_experiments_say_so():
    if torch.cuda.is_available():
        return
    [(rows, notes)] = run([EXPERIMENTS["llama2_7b_bf16"]], Settings(), lambda *_: None)
    assert (rows[0].error, rows[0].skipped, notes) == ("Needs a GPU.", True, [])


def test_how_processes_die():
    assert "memory runs out" in _why(-signal.SIGKILL)
    assert _why(-signal.SIGSEGV) == "The process died of SIGSEGV."
    assert _why(3) == "The process ended with exit code 3."
