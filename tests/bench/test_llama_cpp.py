"""llama.cpp's benchmark as a peer: what it is asked for, and how its figures are read."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.llama_cpp import BatchedBench
from genwright.bench.measure import measure
from genwright.bench.peers import installed_peers
from genwright.bench.roofline import Roofline
from genwright.bench.rows import Row
from genwright.text.settings import EngineConfig

POINTS = (Point(1, 9, 5), Point(3, 150, 7))
EXPERIMENT = Experiment("tiny", "random:stories15m,layers=1", EngineConfig(device="cpu", quant="int8"), "", POINTS, 2)
PROGRAM = """#!{python}
import json, os, sys
if "--version" in sys.argv:
    sys.exit("version: 0.2.0-dev (build 4567, commit abc)")
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt, new, batch = (int(flags[name]) for name in ("-npp", "-ntg", "-npl"))
assert open(flags["-m"], "rb").read(4) == b"GGUF" and flags["-ngl"] == "0" and int(flags["-t"]) > 0
assert int(flags["-c"]) == 256 * batch
print("build: 4567")
print(json.dumps(dict(pp=prompt, tg=new, pl=batch, t_pp=2.0, speed_pp=batch * prompt / 2, t_tg=4.0, t=6.0,
                      speed_tg=batch * new / 4)))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program on the PATH that checks its flags."""
    monkeypatch.setattr("genwright.bench.measure.measure_roofline", lambda *_: Roofline(1e10, 1e12))
    path = tmp_path / "llama-batched-bench"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def rows(experiment: Experiment) -> list[Row]:
    return [row for row in measure(experiment, peers=[BatchedBench]) if row.engine != "genwright"]


def test_rows_have_the_programs_figures(program: Path) -> None:
    assert BatchedBench in installed_peers()
    alone, batch = rows(EXPERIMENT)
    assert (alone.engine, alone.dtype, alone.error) == ("llama.cpp b4567", "Q8_0", None)
    assert (alone.prefill, alone.decode, alone.tokens_per_second) == (9 / 2, 5 / 4, 5 / 6)
    assert (batch.prefill, batch.decode) == (3 * 150 / 2, 3 * 7 / 4)
    assert alone.share is not None and batch.share is not None


def test_what_it_cannot_measure_is_one_sentence(program: Path) -> None:
    (row,) = rows(replace(EXPERIMENT, points=(Traffic(3, (4, 5), (3, 6)),)))
    assert (row.error, row.skipped) == ("llama-batched-bench has no requests that arrive over time.", True)
    program.write_text("#!/bin/sh\necho 'error: unknown model architecture' >&2\nexit 1\n")
    (row,) = rows(EXPERIMENT)
    assert row.error == "RuntimeError: llama-batched-bench measured nothing: error: unknown model architecture"


@pytest.mark.skipif(shutil.which("llama-batched-bench") is None, reason="no llama.cpp on the PATH")
def test_the_real_program() -> None:
    found = rows(EXPERIMENT)
    assert [row.error for row in found] == [None, None]
    assert all(row.decode and row.prefill and row.engine.startswith("llama.cpp b") for row in found)
