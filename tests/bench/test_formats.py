"""The table of formats that benchmarks/formats.py prints."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from genwright.bench.experiments import EXPERIMENTS
from genwright.bench.rows import Row


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks.formats")


def test_formats_are_measured_alike(formats):
    first, *others = (EXPERIMENTS[f"llama3_8b_{name}"] for name in formats.FORMATS)
    assert {(each.model, each.points, each.samples) for each in others} == {(first.model, first.points, first.samples)}
    assert first.model == formats.MODELS[first.device]


def test_a_line_fits_the_heading_and_says_what_is_missing(formats):
    experiment = EXPERIMENTS["llama3_8b_bf16"]
    names, marks = formats.heading(replace(experiment, points=experiment.points[:-1]))
    rows = [
        Row("int8", "m", "cuda", decode=500.4, decode_low=490.0, decode_high=515.012, share=0.756),
        Row("int8", "m", "cuda", batch=8, decode=12345.6, share=1.04),
        Row("int8", "m", "cuda", batch=16, error="Memory ran out."),
        Row("int8", "m", "cuda", batch=64, decode=7.0, share=0.001),
    ]
    line = formats.line(rows)
    assert line == "| int8 | 500 | 76 % | 12,346 | 104 % | - | - | 7 | 0 % |"
    assert names.count("|") == marks.count("|") == line.count("|")
    assert formats.spread([rows]) == pytest.approx(0.05, abs=1e-4)
