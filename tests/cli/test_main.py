"""The command line as a user meets it: exit codes, single sentences, and what saying hello costs."""

import os
import subprocess
import sys

import pytest

from genwright.cli import VERBS


def genwright(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-m", "genwright", *arguments], capture_output=True, text=True, env=env)


def test_help_lists_every_verb_and_imports_little():
    done = genwright("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in VERBS)
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert not {"torch", "numpy", "jinja2", "matplotlib", "asyncio"} & set(imported)
    assert len(imported) < 250


@pytest.mark.parametrize("verb", [[], ["pull"]])
def test_a_reader_that_leaves_early_is_no_error_to_tell_of(verb):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "genwright", *verb]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "genwright"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "genwright: The output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    done = genwright(verb, "--help")
    assert done.returncode == 0
    assert f"genwright {verb}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["generat"], 2, "did you mean 'generate'?"),
        (["xyz"], 2, "There is no command"),
        (["generate", "--no-such-flag", "x"], 2, "no-such-flag"),
        (["generate", "x", "--top-k", "many"], 2, "--top-k"),
        (["generate"], 1, "Standard input is empty"),
        (["generate", "x", "--prompts", "y", "--out", "z"], 1, "Pass only one of"),
        (["generate", "--prompts", "no-file", "--out", "o"], 1, "no file"),
        (["generate", "--prompts", "README.md"], 1, "must be given together"),
        (["generate", "--prompt-length", "0"], 1, "1 or more"),
        (["generate", "x", "--temperature", "-1"], 1, "temperature must be"),
        (["generate", "x", "--logit-bias", "3:4"], 1, "ID=BIAS"),
        (["generate", "x", "--model", "/no/such/model"], 1, "no file or folder"),
        (["generate", "x", "--model", "~nobody-here/model"], 1, "no file or folder ~nobody-here"),
        (["generate", "x", "--schema", "~nobody-here/schema"], 1, "cannot be read"),
        (["generate", "--prompts", "docs", "--out", "o"], 1, "no file docs"),
        (["generate", "x", "--model", "random:nonsense"], 1, "known are"),
        (["generate", "x", "--model", "random:stories15m,layers=1"], 1, "no tokenizer"),
        (
            ["generate", "--prompt-length", "9", "--model", "random:stories15m,layers=1", "--dtype", "int3"],
            1,
            "dtype must",
        ),
        (
            ["generate", "--prompt-length", "9", "--model", "random:stories15m,layers=1", "--device", "tpu"],
            1,
            "device must be auto, cpu",
        ),
        (["generate", "--prompt-length", "256", "--model", "random:stories15m,layers=1"], 1, "the context holds 256"),
        (["generate", "--prompt-length", "9", "--model", "random:stories15m", "--cpu-mem", "0.01"], 1, "would fit"),
        (["chat", "random:stories15m,layers=1"], 1, "no tokenizer"),
        (["bench", "--plot", "rows.txt"], 1, "ends in .png, .svg or .pdf, not rows.txt"),
        (["plan", "random:stories15m", "--prompt-length", "8", "--batch", "9" * 20], 2, "less than or equal to"),
        (["plan", "m" * 300], 1, "cannot be read or written: File name too long."),
        (["dropin", "gpt_fast", "--script", "s" * 300], 1, "There is no script s"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_mistakes_end_in_one_sentence(arguments, code, words):
    done = genwright(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("genwright: ")


def test_prompts_may_come_from_a_pipe():
    code = "from genwright.cli.generate import app; app()"
    command = [
        sys.executable,
        "-c",
        code,
        "--prompts",
        "/dev/stdin",
        "--out",
        "/",
        "--model",
        "random:stories15m,layers=1",
    ]
    done = subprocess.run(command, input="x", capture_output=True, text=True)
    assert "/ is a folder; name a file to write." in done.stderr


def test_a_closed_standard_input_is_empty():
    command = [sys.executable, "-m", "genwright", "generate", "-"]
    done = subprocess.run(command, preexec_fn=lambda: os.close(0), capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("genwright: Standard input is empty")


def test_a_closed_standard_error_ends_nothing():
    command = [sys.executable, "-m", "genwright", "generate", "--prompt-length", "3", "--max-new-tokens", "2"]
    command += ["--model", "random:stories15m,layers=1"]
    done = subprocess.run(command, preexec_fn=lambda: os.close(2), stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and len(done.stdout.split()) == 2


def test_characters_that_a_stream_cannot_express_end_nothing():
    code = "from genwright import cli; cli._prepare_streams(); print(ascii(input()), chr(0x1F600))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", code], input=b"a\xff\n", capture_output=True, env=environment)
    assert (done.stdout, done.stderr) == (rb"'a\udcff' ?" + b"\n", b"")


def test_a_second_ctrl_c_ends_the_command_at_once():
    code = """if True:
        import atexit, os, signal, time
        from genwright import cli
        def interrupt(*_):
            raise KeyboardInterrupt
        def close():  # as of an engine whose step takes long
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        atexit.register(close)
        cli.import_module = interrupt
        cli._run("generate", [])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_warning_is_one_line_and_others_keep_pythons_form() -> None:
    from genwright.cli import _format_warning
    from genwright.errors import GenwrightWarning

    assert _format_warning("It is so.", GenwrightWarning, "file.py", 3) == "genwright: It is so.\n"
    assert _format_warning("It is so.", UserWarning, "file.py", 3).startswith("file.py:3: UserWarning: It is so.")
