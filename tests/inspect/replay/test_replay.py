"""Replay hands out each recorded result once, as the script was given it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import record_run, write_run

from genwright.errors import UserError
from genwright.inspect.replay.replay import Replay
from genwright.inspect.replay.stand_in import StandIn, uninitialised

SOURCE = """
from themodel import generate
for word in ("a", "b", "a"):
    generate(word, n=2)
"""


def numbered(word: str, n: int, _count: list[int] = [0]) -> str:  # noqa: B006
    _count[0] += 1
    return f"{word}{_count[0]}"


def test_results_come_in_order_or_by_their_arguments(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", SOURCE, {"generate": numbered})
    given = [c.result for c in run.calls()]
    replay = Replay(run)
    assert [replay.answer("run", "generate", (w,), {"n": 2}) for w in "aba"] == given
    replay = Replay(run)
    # Threads may come in another order; what is asked in no record is answered in order.
    assert [replay.answer("run", "generate", (w,), {"n": 2}) for w in "bax"] == [given[1], given[0], given[2]]
    with pytest.raises(UserError, match="3 recorded calls of generate, and the script makes one more"):
        replay.answer("run", "generate", ("a",), {"n": 2})


def test_arrays_are_given_in_full(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(3, 4))
    run = record_run(tmp_path / "run", "from themodel import f\nf()\n", {"f": lambda: {"x": [array]}})
    assert np.array_equal(Replay(run).answer("run", "f", (), {})["x"][0], array)


def test_exceptions_streams_coroutines_and_opaque_values(tmp_path: Path) -> None:
    stream = {"type": "stream", "count": 2, "items": ["a", "b"]}
    values = tmp_path / "run" / "values"
    values.mkdir(parents=True)
    (values / "000003.json").write_text('["a", "b"]')
    calls: list[dict[str, Any]] = [
        {"interface": "f", "status": "raised", "exception": {"type": "ZeroDivisionError", "message": "no"}},
        {"interface": "f", "status": "raised", "exception": {"type": "library.OddError", "message": "odd"}},
        {"interface": "g", "result": stream, "value": "values/000003.json"},
        {"interface": "h", "result": 5, "awaited": True},
        {"interface": "k", "result": {"type": "library.Session"}},
    ]
    replay = Replay(write_run(tmp_path / "run", calls))
    with pytest.raises(ZeroDivisionError, match="no"):
        replay.answer("run", "f", (), {})
    with pytest.raises(RuntimeError, match="odd") as raised:
        replay.answer("run", "f", (), {})
    assert raised.type.__name__ == "OddError"
    assert list(replay.answer("run", "g", (), {})) == ["a", "b"]
    assert asyncio.run(replay.answer("run", "h", (), {})) == 5
    opaque = replay.answer("run", "k", (), {})
    assert isinstance(opaque, StandIn) and str(opaque) == "k()"


def test_methods_of_an_object_whose_constructor_did_not_run(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = {"w": 1}

        def load(self, weights: dict[str, int]) -> str:
            assert weights.keys() == self.weights.keys()
            return "loaded"

        def version(self) -> int:
            return 3

    made = uninitialised(Model, "Model")
    assert isinstance(made, Model) and made.version() == 3 and str(made.load({"v": 1})) == "Model.load()"
    Model.load.__module__ = "__main__"  # what the script defines fails as it would
    with pytest.raises(AssertionError):
        uninitialised(Model, "Model").load({"v": 1})
