"""What comes out: the table, PyTorch's CSV, the picture."""

import csv
import io
from dataclasses import replace

import pytest
from PIL import Image

from genwright.bench.plot import draw
from genwright.bench.report import limits, plain, to_csv
from genwright.bench.roofline import Roofline
from genwright.bench.rows import Row, Sample, fill
from genwright.bench.work import Work
from genwright.errors import UserError

WORK, LIMITS = Work(3e9, 1e9, 6e9, 5e11), Roofline(80e9, 1e12)
DONE = fill(
    replace(
        Row("llama2_7b_int8", "m", "cuda", arch="H", dtype="int8", prompt=100, new=20),
        load=2.0,
        first_token=0.5,
        first_call=3.0,
        memory=4.0,
    ),
    [Sample(2.0, 20, 0.5, 15.0)],
    WORK,
    LIMITS,
)
SERVED = replace(
    Row("smollm2_serving", "m", "cpu", arch="H", dtype="bfloat16", batch=32, prompt=16, new=8),
    longest_prompt=256,
    longest_new=64,
    rate=2.5,
    total=4000.0,
    prompt_per_second=3000.0,
    tokens_per_second=1000.0,
    ttft_p50=0.25,
    ttft_p99=1.5,
    tbt_p50=0.02,
    tbt_p99=0.0475,
    limits_share=0.25,
    serving_tflops=0.5,
    serving_intensity=30.0,
    read_gbps=80.0,
    matmul_tflops=1.0,
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


def test_rows_of_serving(tmp_path):
    heading, first, second = plain([SERVED, replace(SERVED, rate=None)]).splitlines()
    for name in ("arrivals", "total/s", "prompt/s", "TTFT p50, p99 s", "TBT p50, p99 ms", "of both limits"):
        assert name in heading
        assert name not in plain([DONE]), "columns of serving are for serving"
    assert "decode/s" not in heading
    for cell in ("16-256+8-64", "2.5/s", "4,000.0", "0.25, 1.50", "20.0, 47.5", "25%"):
        assert cell in first
    assert "at once" in second
    figures = {each["metric"]: each["actual"] for each in csv.DictReader(io.StringIO(to_csv([SERVED])))}
    assert (figures["total_token_per_sec"], figures["ttft_p99(ms)"]) == ("4000.00", "1500.00")
    assert "smollm2_serving (32 requests, 2.5/s)" in to_csv([SERVED])
    assert "memory 80.0 to 80.0 GB/s" in limits([SERVED])
    draw([SERVED], tmp_path / "serving.png")
    draw([DONE, SERVED], tmp_path / "both.png")
    assert (tmp_path / "both.png").stat().st_size > (tmp_path / "serving.png").stat().st_size > 10_000


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
