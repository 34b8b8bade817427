"""Two runs are equal up to a tolerance, or the difference points at the call and its line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import record_run

from genwright.errors import UserError
from genwright.inspect.report.run_diff import Difference, Tolerance, diff_runs

SOURCE = """
import random
from themodel import embed, generate
{seed}
first = generate("a")
second = generate(first + str(random.random()))
embed(second)
"""
MODEL: dict[str, Any] = {"generate": lambda text: text, "embed": lambda text: np.array([float(len(text))])}


def differences(tmp_path: Path, left: str, right: str, model: dict[str, Any] = MODEL, **tolerance: float) -> list:
    other = {name: value for name, value in model.items() if name != "right"} | model.get("right", {})
    model = {name: value for name, value in model.items() if name != "right"}
    runs = [record_run(tmp_path / f"run{i}", s, m) for i, (s, m) in enumerate([(left, model), (right, other)])]
    return list(diff_runs(*runs, Tolerance(**tolerance)))


def test_two_seeded_runs_are_equal(tmp_path: Path) -> None:
    seeded = SOURCE.format(seed="random.seed(4)")
    assert differences(tmp_path, seeded, seeded) == []


def test_two_unseeded_runs_differ_at_the_call(tmp_path: Path) -> None:
    first, *_ = differences(tmp_path, SOURCE.format(seed=""), SOURCE.format(seed=""))
    assert (first.call, first.line, first.interface, first.where) == (2, 6, "generate", "arguments[0]")
    assert str(first).startswith("line 6: call 2 (generate): arguments[0]: 'a0.")


def test_results_are_compared_within_a_tolerance(tmp_path: Path) -> None:
    source = "from themodel import f\nf(1)\n"
    for number, (one, other) in enumerate(
        [
            (np.arange(4.0), np.arange(4.0) * (1 + 1e-6)),
            (torch.arange(4.0), torch.arange(4.0) * (1 + 1e-6)),
            ({"a": [1.0]}, {"a": [1.000001]}),
        ]
    ):
        model = {"f": lambda x, one=one: one, "right": {"f": lambda x, other=other: other}}
        folder = tmp_path / str(number)
        (difference,) = differences(folder / "exact", source, source, model)
        assert difference.line == 2 and difference.where.startswith("result")
        assert not differences(folder / "near", source, source, model, relative=1e-5)
        assert not differences(folder / "absolute", source, source, model, absolute=1e-4)
        assert differences(folder / "far", source, source, model, relative=1e-8)


def test_calls_that_only_one_run_makes(tmp_path: Path) -> None:
    left = "from themodel import generate\ngenerate('a')\ngenerate('b')\n"
    (extra,) = differences(tmp_path, left, left + "generate('c')\n")
    assert extra == Difference(3, 4, "generate", "run", "not called", "called")


def test_exceptions_and_ends_are_compared(tmp_path: Path) -> None:
    def fail(text: str) -> str:
        raise ValueError("no")

    source = "from themodel import generate\ngenerate('a')\n"
    found = differences(tmp_path, source, source, {**MODEL, "right": {"generate": fail}})
    assert [d.where for d in found] == ["status", "status", "exception", "result"]


def test_a_tolerance_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from 0 up"):
        Tolerance(relative=-1)
