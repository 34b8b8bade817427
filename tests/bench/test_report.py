"""What comes out: the table, PyTorch's CSV, the picture."""

import csv
import io
from dataclasses import replace

import pytest
from PIL import Image

from genwright.bench.experiments import Point
from genwright.bench.plot import draw
from genwright.bench.report import limits, plain, to_csv
from genwright.bench.roofline import Roofline
from genwright.bench.rows import Row, Sample, fill
from genwright.bench.work import Work
from genwright.errors import UserError

WORK, LIMITS = Work(3e9, 1e9, 6e9, 5e11), Roofline(80e9, 1e12)
DONE = fill(
    Row("llama2_7b_int8", "m", "cuda", arch="H", dtype="int8", load=2.0, first_token=0.5, first_call=3.0, memory=4.0),
    Point(1, 100, 20),
    [Sample(2.0, 20, 0.5, 15.0)],
    WORK,
    LIMITS,
)
BROKEN = Row("tinyllama_1b", "m", "cpu", error="memory ran out.")


def test_csv_has_pytorchs_columns_and_targets():
    rows = list(csv.DictReader(io.StringIO(to_csv([DONE, BROKEN, replace(DONE, name="other", batch=8)]))))
    assert list(rows[0]) == ["name", "metric", "target", "actual", "dtype", "device", "arch", "is_model"]
    pytorchs = [(r["name"], r["metric"], r["target"], r["actual"]) for r in rows if r["target"]]
    assert pytorchs == [
        ("Llama-2-7b-chat-hf", "token_per_sec", "144", "10.00"),
        ("Llama-2-7b-chat-hf", "memory_bandwidth(GB/s)", "957", "30.00"),
        ("Llama-2-7b-chat-hf", "compilation_time(s)", "172", "3.00"),
    ]
    assert {"name": "tinyllama_1b", "metric": "error", "actual": "memory ran out."}.items() <= rows[9].items()
    assert rows[-1]["name"] == "other (batch 8)"


def test_the_table_says_what_broke():
    text = plain([DONE, BROKEN])
    heading, first, second = text.splitlines()
    assert "of limit" in heading
    assert "75%" in first
    assert second.startswith("tinyllama_1b")
    assert second.endswith("memory ran out.")
    assert "engine" not in heading
    assert "engine" in plain([DONE, replace(DONE, engine="transformers")]).splitlines()[0]
    assert "memory 80.0 to 80.0 GB/s" in limits([DONE, BROKEN])


def test_a_table_that_is_too_wide_has_its_rows_as_columns():
    rows = [DONE, replace(DONE, engine="transformers")]
    wide = plain(rows)
    assert plain(rows, 200) == wide
    narrow = plain(rows, 80)
    assert sorted(narrow.split()) == sorted(wide.split()), "nothing is cut off"
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.splitlines()[1].split() == ["engine", "genwright", "transformers"]


def test_the_picture(tmp_path):
    draw([DONE, replace(DONE, batch=8, decode_tflops=0.6), BROKEN], tmp_path / "roofline.png")
    with Image.open(tmp_path / "roofline.png") as image:
        assert image.size[0] > 1000
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20
    with pytest.raises(UserError, match="nothing to draw"):
        draw([BROKEN], tmp_path / "none.png")
