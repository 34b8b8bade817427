"""Long jobs: every line exactly once, whatever interrupts them."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.batch import Results, read_lines, run_jobs
from genwright.text.engine.request import STOPPED_EARLY

MODEL = "random:stories15m,layers=1"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(MODEL, device="cpu", dtype="float32")


def write_prompts(path: Path, count: int) -> Path:
    rng = random.Random(0)
    rows = [
        {
            "prompt": [rng.randrange(32000) for _ in range(rng.randint(1, 20))],
            "max_new_tokens": rng.randint(4, 16),
            "seed": n,
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(llm, prompts: Path, out: Path, params=None, chat=False) -> tuple[int, list[str]]:
    told: list[str] = []
    lines = read_lines(prompts)
    with closing(Results(out)) as results:
        return run_jobs(llm, lines, params or SamplingParams(), chat, results, told.append, lambda tokens: None), told


def rows_of(out: Path) -> dict[int, list[int]]:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len({row["line"] for row in rows}), "no line twice"
    return {row["line"]: row["ids"] for row in rows}


def test_kill_9_and_ctrl_c_at_random_moments_lose_and_repeat_nothing(llm, tmp_path, full_size):
    count = 600 if full_size else 250
    prompts = write_prompts(tmp_path / "big.jsonl", count)
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "genwright", "generate", "--model", MODEL, "--device", "cpu", "--dtype", "float32"]
    command += ["--temperature", "1", "--top-k", "20", "--prompts", str(prompts), "--out", str(out)]
    rng, kills = random.Random(1), 20 if full_size else 2
    landed = 0
    for kill in range(kills):
        done = out.read_bytes().count(b"\n") if out.exists() else 0
        target = done + rng.randint(0, max((count - done) // (kills - kill + 1), 1))
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        ) as process:
            while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < target):
                time.sleep(0.002)
            landed += process.poll() is None
            process.send_signal(signal.SIGINT if kill % 2 else signal.SIGKILL)
    assert landed >= kills - 1, "the kills should land before the end"
    with out.open("ab") as file:
        file.write(b'{"line": 7, "dig')  # torn, as a crash of the machine leaves it
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    whole = tmp_path / "whole.jsonl"
    run(llm, prompts, whole, SamplingParams(temperature=1.0, top_k=20))
    assert rows_of(out) == rows_of(whole)
    assert len(rows_of(out)) == count


def test_bad_lines_are_told_by_number_and_the_others_run(llm, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    lines = [
        '{"prompt": [1, 2]}',
        "not json",
        "",
        '{"prompt": [1], "temperatur": 1}',
        '{"prompt": [1], "temperature": -1}',
        '{"prompt": [99999999]}',
        '{"prompt": "text without a tokenizer"}',
        '{"messages": "hi"}',
        '{"prompt": [1], "messages": []}',
        '{"prompt": [1], "logit_bias": {"\u00b2": 1}}',
        '{"prompt": ' + "[" * 100_000 + "}",
        '{"prompt": [1, "x"]}',
        '{"prompt": {"a": 1}}',
        "[1, 2]",
        '{"prompt": [3], "n": 2, "max_new_tokens": 3, "stop_ids": [4], "logit_bias": {"5": 1.5}}',
        '{"prompt": [3], "logit_bias": {"x": 1.5}}',
        '{"prompt": []}',
        '{"prompt": [3], "logit_bias": {"' + "9" * 5000 + '": 1}}',
    ]
    prompts.write_text("\n".join(lines))
    bad, told = run(llm, prompts, out)
    assert bad == 15
    assert [int(line.split()[1]) for line in told] == [2, *range(4, 15), 16, 17, 18]
    assert sorted(rows_of(out)) == [1, 15]
    samples = {row["line"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert len(samples[15]["samples"]) == 1


def test_only_line_feeds_end_a_line_and_a_byte_order_mark_is_none(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffone\u2028two\x85three\x0cfour\r\n\r\nfive\rsix\n \nseven".encode())
    assert read_lines(path) == [(1, "one\u2028two\x85three\x0cfour"), (3, "five\rsix"), (5, "seven")]


def test_ids_of_the_user_are_carried_through(llm, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    ids = ["a-7", 7, None, {"shard": [1, 2]}, "half \ud800\u2028"]
    rows = [{"prompt": [3], "max_new_tokens": 1, "id": own} for own in ids] + [{"prompt": [3], "max_new_tokens": 1}]
    prompts.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, rows)).encode())
    assert run(llm, prompts, out) == (0, [])
    found = {row["line"]: row for row in map(json.loads, out.read_bytes().splitlines())}
    assert [found[line]["id"] for line in range(1, 6)] == ids
    assert "id" not in found[6]
    assert run(llm, prompts, out) == (0, [])


def test_a_full_disk_is_one_sentence_and_loses_nothing(llm, tmp_path):
    prompts, out, whole = write_prompts(tmp_path / "p.jsonl", 20), tmp_path / "o.jsonl", tmp_path / "whole.jsonl"
    run(llm, prompts, whole)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1500, 3001):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(
                UserError, match=r"o\.jsonl cannot be written: File too large; earlier results are kept"
            ):
                run(llm, prompts, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not llm.loop.call(llm.engine.busy)
    kept = out.read_bytes().rpartition(b"\n")[0]
    assert len(kept) > 2500
    run(llm, prompts, out)
    assert out.read_bytes().startswith(kept)
    assert rows_of(out) == rows_of(whole)


def test_a_resume_with_another_model_or_other_flags_is_refused(llm, tmp_path):
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "o.jsonl"
    run(llm, prompts, out)
    before = out.read_bytes()
    load = partial(LLM, device="cpu", dtype="float32")
    others = [load(MODEL + ",seed=1"), load(MODEL, kv="int8")]
    for model, params in [(llm, SamplingParams(temperature=1.0)), *((other, None) for other in others)]:
        with pytest.raises(UserError, match="another model or other flags"):
            run(model, prompts, out, params)
    assert run(load(MODEL), prompts, out) == (0, [])
    assert out.read_bytes() == before


def test_plain_lines_are_prompts_and_their_own_parameters_win(smollm2, tmp_path):
    llm = LLM(smollm2, device="cpu", dtype="float32")
    plain, out = tmp_path / "p.txt", tmp_path / "o.jsonl"
    plain.write_text("Hello there\n\nOnce upon\n")
    run(llm, plain, out, SamplingParams(max_new_tokens=2))
    rows = {row["line"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert {line: len(row["ids"]) for line, row in rows.items()} == {1: 2, 3: 2}
    mixed, out = tmp_path / "p.jsonl", tmp_path / "o2.jsonl"
    rows = [{"messages": [{"role": "user", "content": "Say hi"}], "max_new_tokens": 3}, {"prompt": "Hello there"}]
    mixed.write_text("\n".join(map(json.dumps, [*rows, {"messages": "hi"}, {"messages": [1]}, {"prompt": rows[0]}])))
    bad, told = run(llm, mixed, out, SamplingParams(max_new_tokens=2))
    assert {line: len(ids) for line, ids in rows_of(out).items()} == {1: 3, 2: 2}
    assert bad == 3
    assert "Chat messages must be a list" in told[0]
    with pytest.raises(UserError, match="another model or other flags"):
        run(llm, mixed, out, SamplingParams(max_new_tokens=2), chat=True)


def test_an_answer_that_fails_is_no_result_and_runs_again(llm, tmp_path):
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "o.jsonl"
    failing = json.loads(prompts.read_text().splitlines()[1])["prompt"]

    def break_one(ids, logits):
        return logits * float("nan") if ids[: len(failing)] == failing else logits

    skipped, told = run(llm, prompts, out, SamplingParams(logits_processor=break_one))
    assert (skipped, set(rows_of(out))) == (1, {1, 3})
    assert told == [f"Line 2 was skipped: {STOPPED_EARLY}"]
    failing = [-1]
    assert run(llm, prompts, out, SamplingParams(logits_processor=break_one)) == (0, [])
    assert set(rows_of(out)) == {1, 2, 3}


def test_a_results_file_is_guarded(llm, tmp_path):
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "o.jsonl"
    run(llm, prompts, out)
    prompts.write_text(prompts.read_text().replace("[", "[7, ", 1))
    with pytest.raises(UserError, match="made from other prompts: line 1"):
        run(llm, prompts, out)
    held = Results(out)
    with pytest.raises(UserError, match="another process"):
        Results(out)
    held.close()
    foreign = tmp_path / "notes.jsonl"
    foreign.write_text("these are my notes\n")
    with pytest.raises(UserError, match=r"Line 1 of .*notes\.jsonl is not a result"):
        Results(foreign)
    assert foreign.read_text() == "these are my notes\n"
    foreign.write_text("no line feed")
    with pytest.raises(UserError, match=r"Line 1 of .*notes\.jsonl is not a result"):
        Results(foreign)
    assert foreign.read_text() == "no line feed"
    with pytest.raises(UserError, match="not a regular file"):
        Results(Path("/dev/full"))
