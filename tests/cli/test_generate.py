"""`genwright generate`: what it prints, for people and for programs."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.test_main import genwright
from terminal import Terminal, call, run

from genwright import LLM
from genwright.cli.generate import app
from genwright.errors import UserError

ROOT = Path(__file__).parents[2]
# What takes long to import (torch's compiler longer than torch), and what a prompt on a CPU does without.
SLOW_IMPORTS = {"torch._dynamo", "torch._inductor", "sympy", "scipy", "rich", "jinja2", "triton", "starlette", "PIL"}
TINY = ("--model", "random:stories15m,layers=1", "--device", "cpu", "--dtype", "float32")


def test_a_real_answer_with_a_summary(smollm2):
    done = genwright("generate", "What is the capital of France?", "--chat", "--model", str(smollm2))
    assert done.returncode == 0
    assert "Paris" in done.stdout
    for part in ("tokens in", "tokens/s", "GB/s", "GB of memory", "seed"):
        assert part in done.stderr


def test_a_prompt_imports_only_what_it_needs():
    """So that its first character comes soon after torch is imported."""
    arguments = ["genwright", "generate", "--prompt-length", "3", "--max-new-tokens", "4", *TINY]
    code = "import atexit, gc, sys; atexit.register(lambda: print(*sys.modules, gc.isenabled()))"
    code += f"; from genwright.cli import main; sys.argv = {arguments}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *modules, collects_garbage = done.stdout.splitlines()[-1].split()
    assert "torch" in modules
    assert not SLOW_IMPORTS & set(modules)
    assert collects_garbage == "True"


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


@pytest.fixture(scope="module")
def llm(smollm2):
    return LLM(smollm2)


@pytest.fixture
def generate(llm, monkeypatch, capsys):
    """The command with standard input's bytes and its arguments, without a process of its own; its output."""
    monkeypatch.setattr("genwright.cli.generate.load", lambda model, config: llm)

    def run(stdin: bytes, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        app([*arguments, "--max-new-tokens", "4"], standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("stdin", "arguments", "prompt"),
    [
        (b"hi\n", [], "hi"),
        ("\ufeffh\u00e9\r\nllo \U0001f389\n\n".encode(), ["-"], "h\u00e9\r\nllo \U0001f389"),
        (b"of Windows\r\n\r\n", [], "of Windows"),
        (b"a text\n", ["Summarise:", "-"], "Summarise:\n\na text"),
        (b"a text\n", ["Read:", "-", "Answer:"], "Read:\n\na text\n\nAnswer:"),
        (b"not read", ["only this"], "only this"),
    ],
)
def test_standard_input_is_a_prompt_or_a_part_of_one(generate, stdin, arguments, prompt):
    assert json.loads(generate(stdin, *arguments, "--json"))["prompt"] == prompt


@pytest.mark.parametrize(("stdin", "words"), [(b"\n \n", "empty"), (b"ab\xff", "not UTF-8 text: byte 2 ")])
def test_input_that_is_no_prompt(generate, stdin, words):
    with pytest.raises(UserError, match=f"^Standard input is {words}"):
        generate(stdin, "-")


def test_a_terminal_without_a_prompt_gets_one_sentence():
    code, output = run(sys.executable, "-m", "genwright", "generate", cwd=ROOT)
    assert code == 1
    assert output.startswith("genwright: Pass a prompt, as in ") and output.count("\n") == 1


def test_several_answers_are_interrupted_and_kept():
    command = ("generate", "Once upon a time", "-n", "3", "--max-new-tokens", "2000", "--ignore-eos", "--seed", "7")
    terminal = Terminal(sys.executable, "-m", "genwright", *command, cwd=ROOT, term="xterm-256color", COLUMNS="100")
    terminal.wait_for(r"Tokens .*\D[1-9]\d+/")  # some have come
    os.write(terminal.master, b"\x03")
    code, output = terminal.end()
    assert code == 130 and "tokens/s" not in output
    assert re.findall(r"--- prompt 1, sample (\d), seed 7\s+\S+", output) == ["1", "2", "3"]


def test_a_prompt_is_typed_and_an_answer_interrupted():
    command = ("generate", "-", "--max-new-tokens", "4000", "--ignore-eos")
    terminal = Terminal(sys.executable, "-m", "genwright", *command, cwd=ROOT)
    terminal.wait_for("end it with Ctrl-D")
    terminal.type("Once upon a time, in h\u00e9 \u65e5\u672c")
    os.write(terminal.master, b"\x04")
    terminal.wait_for(r"\w+ \w+ \w+ ")
    os.write(terminal.master, b"\x03")
    code, output = terminal.end()
    assert code == 130
    assert output.endswith("\n") and "Traceback" not in output


@pytest.mark.parametrize("flag", ["-n", "--n", "--num-samples"])
def test_every_sample_is_shown(generate, flag):
    shown = generate(b"", "One", flag, "3", "--temperature", "1", "--seed", "4")
    rows = json.loads(generate(b"", "One", flag, "3", "--temperature", "1", "--seed", "4", "--json"))
    texts = [rows["text"], *(sample["text"] for sample in rows["samples"])]
    assert len(set(texts)) > 1
    assert shown == "".join(f"--- prompt 1, sample {i}, seed 4\n{text}\n" for i, text in enumerate(texts, 1))


def test_log_probabilities_are_a_table(generate, llm):
    out = generate(b"", "The capital of France is", "--logprobs", "2", "--prompt-logprobs")
    row = json.loads(generate(b"", "The capital of France is", "--logprobs", "2", "--prompt-logprobs", "--json"))
    answer, prompt, tokens = out.rsplit("\n\n", 2)
    assert answer == row["text"]
    for name, table, logprobs in (("Prompt", prompt, row["prompt_logprobs"][1:]), ("Answer", tokens, row["logprobs"])):
        head, *lines = table.splitlines()
        assert head.split() == [name, "id", "logprob", "probability", "likeliest"]
        assert len(lines) == len(logprobs)
        for line, token in zip(lines, logprobs, strict=True):
            assert f"{token['id']} " in line and f" {token['logprob']:.3f} " in line
            for other, value in token["top"].items():
                assert f"{llm.tokenizer.token_text(int(other))!r} {value:.2f}" in line


def test_on_a_terminal_an_alternative_is_not_broken(llm, monkeypatch):
    monkeypatch.setattr("genwright.cli.generate.load", lambda model, config: llm)
    command = ["The [red]capital[/red] of France is", "--max-new-tokens", "1", "--logprobs", "20"]
    lines = call(lambda: app(command)).output.splitlines()
    table = lines[lines.index("") + 1 : -1]
    assert len(table) > 2 and max(map(len, table)) <= 120  # the terminal's width
    assert sum(len(re.findall(r"""'[^']*' -\d+\.\d\d|"[^"]*" -\d+\.\d\d""", line)) for line in table) == 20


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_answers_so_far(llm, monkeypatch, capsys, number):
    """Also one that comes before the engine has the requests."""
    follow, before = llm.follow, signal.signal(signal.SIGTERM, signal.default_int_handler)

    def interrupted(requests):
        os.kill(os.getpid(), number)
        return follow(requests)

    monkeypatch.setattr(llm, "follow", interrupted)
    monkeypatch.setattr("genwright.cli.generate.load", lambda model, config: llm)
    try:
        assert app(["One", "Two", "--ignore-eos", "--max-new-tokens", "5000"], standalone_mode=False) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    shown = capsys.readouterr().out
    assert "--- prompt 1" in shown and "--- prompt 2" in shown and len(shown) < 2000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_ctrl_c_stays_ignored(generate, llm, monkeypatch):
    """As in a background job of a script."""
    follow, before = llm.follow, signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupted(requests):
        os.kill(os.getpid(), signal.SIGINT)
        return follow(requests)

    monkeypatch.setattr(llm, "follow", interrupted)
    try:
        assert generate(b"", "One", "--max-new-tokens", "3")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_link_to_itself_can_be_no_output(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "prompts.txt").write_text("One")
    arguments = ["--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "loop")]
    done = genwright("generate", *arguments, *TINY)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_only_the_first_rank_reads_and_checks_files(monkeypatch, tmp_path):
    """Others may be on machines without them; a pipe can be read once."""
    monkeypatch.setattr("genwright.cli.generate.load", lambda model, config: sys.exit(3))  # as it ends other ranks
    monkeypatch.setenv("RANK", "1")
    arguments = ["--prompts", str(tmp_path / "none.txt"), "--out", str(tmp_path / "none" / "out.jsonl")]
    assert call(lambda: app(arguments)).code == 3
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"There is no file .*none\.txt"):
        app(arguments, standalone_mode=False)


def test_answers_follow_a_schema_a_regex_or_a_grammar(generate, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.lark"
    schema.write_text('{"enum": ["yes", "no"]}')
    grammar.write_text('start: "A" | "B"')
    assert generate(b"", "Is it?", "--schema", str(schema)).strip() in ('"yes"', '"no"')
    assert generate(b"", "Is it?", "--grammar", str(grammar)).strip() in ("A", "B")
    assert re.fullmatch("[0-9]{3}", generate(b"", "A number:", "--regex", "[0-9]{3}").strip())
    with pytest.raises(UserError, match="--schema needs a file, but nowhere cannot be read: No such file"):
        generate(b"", "Is it?", "--schema", "nowhere")
