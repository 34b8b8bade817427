"""`genwright generate`: what it prints, for people and for programs."""

import json
import os
import signal
import subprocess
import sys
import time

from cli.test_main import genwright

TINY = ("--model", "random:stories15m,layers=1", "--device", "cpu", "--dtype", "float32")


def test_a_real_answer_with_a_summary(smollm2):
    done = genwright("generate", "What is the capital of France?", "--chat", "--model", str(smollm2))
    assert done.returncode == 0
    assert "Paris" in done.stdout
    for part in ("tokens in", "tokens/s", "GB/s", "GB of memory", "seed"):
        assert part in done.stderr


def test_json_holds_everything(smollm2):
    done = genwright(
        *("generate", "One", "Two", "--json", "--num-samples", "2", "--seed", "4", "--temperature", "1"),
        *("--max-new-tokens", "3", "--logprobs", "1", "--prompt-logprobs", "--model", str(smollm2)),
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["prompt"] for row in rows] == ["One", "Two"]
    for row in rows:
        assert {"text", "ids", "finish_reason", "seed", "timing", "logprobs", "prompt_logprobs", "samples"} <= set(row)
        assert len(row["samples"]) == 1
        assert len(row["logprobs"]) == len(row["ids"])


def test_synthetic_prompts_and_token_ids():
    done = genwright("generate", "--prompt-length", "100", "--max-new-tokens", "5", "--ignore-eos", *TINY)
    assert len(done.stdout.split()) == 5
    assert done.returncode == 0


def test_several_prompts_are_told_apart(smollm2):
    done = genwright("generate", "A", "B", "--max-new-tokens", "2", "--model", str(smollm2))
    assert next(line for line in done.stdout.splitlines() if line.startswith("---")).startswith("--- prompt 1")
    assert "--- prompt 2" in done.stdout


def test_interrupts_end_with_130_and_no_traceback():
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-m", "genwright", "generate", "--prompt-length", "9", "--max-new-tokens", "100000"]
        command += ["--ignore-eos", "--model", "random:tinyllama-1.1b,layers=1", "--device", "cpu"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
            process.stdout.read(1)  # the first token is out
            time.sleep(0.1)
            process.send_signal(number)
            process.stdout.read()
            errors = process.stderr.read()
        assert process.returncode == 130
        assert b"Traceback" not in errors
