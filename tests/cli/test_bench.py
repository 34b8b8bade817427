"""`genwright bench` and `genwright eval`: what they print, write and exit with."""

import json

import pytest
import torch
from cli.test_main import genwright

TINY = "random:stories15m,layers=1"


def test_rows_files_and_the_exit_code(tmp_path):
    done = genwright(
        *("bench", TINY, "/no/such/model", "--batch", "1", "--batch", "2", "--max-new-tokens", "3", "--samples", "1"),
        *("--csv", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "roofline.png"), "--json"),
    )
    assert done.returncode == 1  # the second is broken
    rows = json.loads(done.stdout)["rows"]
    assert [(row["name"], row["batch"]) for row in rows] == [(TINY, 1), (TINY, 2), ("/no/such/model", 1)]
    assert rows[0]["decode"] > 0
    assert rows[0]["read_gbps"] > 0
    assert "no file or folder" in rows[2]["error"]
    assert "Traceback" not in done.stderr
    assert "tokens/s of decoding" in done.stderr  # progress, where stderr is no terminal
    assert "token_per_sec" in (tmp_path / "rows.csv").read_text()
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_lists_and_skips():
    done = genwright("bench", "--list")
    assert "mixtral_8x7b_int8" in done.stdout
    assert {"name", "model", "points", "target"} <= set(json.loads(genwright("bench", "--list", "--json").stdout)[0])
    skipped = genwright("bench", "llama2_7b_bf16")
    assert skipped.returncode == 0
    assert "Needs a GPU" in skipped.stdout


def test_a_text_is_evaluated(smollm2, tmp_path):
    (tmp_path / "text").write_text("It was the best of times, it was the worst of times.")
    done = genwright("eval", str(smollm2), "--text", str(tmp_path / "text"), "--json", "--window", "8")
    found = json.loads(done.stdout)
    assert 1 < found["perplexity"] < 100
    assert found["bytes"] == 50  # without the first token
    assert found["tokens"] == 13


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "llama2_7b_int9"], "did you mean"),
        (["bench", TINY, "--csv", "/no/such/folder/x.csv"], "no folder"),
        (["bench", TINY, "--device", "tpu"], "Device 'tpu' is unknown"),
        (["eval", "smollm2"], "--text FILE or --tasks NAMES"),
        (["eval", "smollm2", "--text", "x", "--tasks", "y"], "--text FILE or --tasks NAMES"),
        (["eval", "smollm2", "--text", "/no/such/text"], "cannot be read"),
        (["eval", "smollm2", "--text", "x", "--limit", "3"], "--limit has no effect with --text."),
        (["eval", "smollm2", "--tasks", "x", "--stride", "3"], "--stride has no effect with --tasks."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_end_in_one_sentence(arguments, words):
    done = genwright(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
