"""Results in full: what is stored comes back equal, and what cannot be stored is named."""

import math
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genwright.errors import UserError
from genwright.inspect.records.stored_values import OpaqueValue, read_value, store_value

Pair = namedtuple("Pair", "first second")


def back(value: Any, folder: Path) -> Any:
    path = store_value(value, folder / "values" / "000001")
    assert path is not None
    return read_value(path)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        0.1,
        "tëxt\x00",
        [1, (2, 3), {4}, frozenset({5})],
        {"a": [1], "b": {"$": "no tag"}},
        {1: "x", (2, 3): None},
        b"\x00\xff",
        1 + 2j,
        Path("a/b"),
        float("inf"),
        Pair(1, [2]),
    ],
    ids=repr,
)
def test_plain_values_come_back(value: Any, tmp_path: Path) -> None:
    found = back(value, tmp_path)
    assert found == value and (isinstance(value, Pair) or type(found) is type(value))


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    assert math.isnan(back([float("nan")], tmp_path)[0])


def test_arrays_tensors_and_pictures_come_back(tmp_path: Path) -> None:
    shared = torch.arange(4, dtype=torch.bfloat16)
    value = {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(2.5),
        "tensors": (shared, shared[1:], torch.nn.Parameter(torch.ones(2))),
        "picture": Image.new("RGB", (2, 3), (1, 2, 3)),
    }
    found = back(value, tmp_path)
    assert np.array_equal(found["array"], value["array"]) and found["scalar"] == np.float32(2.5)
    assert isinstance(found["scalar"], np.float32)
    for mine, theirs in zip(found["tensors"], value["tensors"], strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    assert found["picture"].size == (2, 3) and found["picture"].getpixel((0, 0)) == (1, 2, 3)


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    assert store_value(object(), tmp_path / "000001") is None
    found = back([1, torch.nn.Linear(1, 1), np.array([object()])], tmp_path)
    assert found[0] == 1 and found[1] == OpaqueValue("torch.nn.modules.linear.Linear")
    with pytest.raises(UserError, match=r"recorded torch\.nn\.modules\.linear\.Linear"):
        found[1].forward(1)


def test_what_is_larger_than_the_limit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.zeros(1 << 27, np.uint8)
    found = back([large, "kept"], tmp_path)
    assert "limit" in found[0].reason and found[1] == "kept"


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    path = store_value([np.zeros(1)], tmp_path / "000001")
    assert path is not None
    np.savez(path.with_suffix(".npz"), v0=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="cannot be read"):
        read_value(path)
